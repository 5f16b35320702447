"""How many requests are open at once: one more is refused before anything is kept of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from engine.errors import QueueFull
from engine.observer import EngineObserver

_TOO_MANY = "too_many_requests"
_RETRY_AFTER_S = 1.0


class Permits:
    """A bound over both protocols. Used on the event loop only, so it needs no lock."""

    def __init__(self, limit: int, observer: EngineObserver) -> None:
        self._limit = limit
        self._observer = observer
        self._open = 0

    @contextmanager
    def one(self) -> Iterator[None]:
        """Held by a request from its arrival to its answer."""
        if self._open >= self._limit:
            self._observer.rejected(reason=_TOO_MANY)
            raise QueueFull(
                f"{self._open} requests are open, and no more than {self._limit} may be",
                code=_TOO_MANY,
                limit=self._limit,
                actual=self._open + 1,
                retry_after_s=_RETRY_AFTER_S,
            )
        self._open += 1
        try:
            yield
        finally:
            self._open -= 1
