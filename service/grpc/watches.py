"""Limits health watches: they need no key, count against no other limit, and never end by
themselves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from engine.errors import QueueFull
from service.settings import Settings

CODE = "too_many_watches"
_CALLS_FOR_EACH_WATCH = 16
_RETRY_AFTER_S = 1.0


def _not_counted() -> None:
    pass


class WatchLimit:
    """Limits the watches of each connection, so that no caller takes those of the others, and of
    all together. Use it on the event loop."""

    def __init__(self, settings: Settings, refused: Callable[[], None] = _not_counted) -> None:
        self._max_per_connection = max(
            1, settings.max_streams_per_connection // _CALLS_FOR_EACH_WATCH
        )
        self._max_open = settings.max_open_requests
        self._refused = refused
        self._open: Counter[str] = Counter()
        """Open watches by connection. A connection without watches is not in it."""

    @contextmanager
    def slot(self, connection: str) -> Iterator[None]:
        """Counts a watch while the context is open. Raises QueueFull if there are too many."""
        self._check(self._open[connection], self._max_per_connection, "of one connection")
        self._check(self._open.total(), self._max_open, "of all connections")
        self._open[connection] += 1
        try:
            yield
        finally:
            self._open -= Counter((connection,))

    def _check(self, num_open: int, limit: int, whose: str) -> None:
        if num_open < limit:
            return
        self._refused()
        raise QueueFull(
            f"{num_open} health watches {whose} are open, and the limit is {limit}",
            code=CODE,
            limit=limit,
            actual=num_open + 1,
            retry_after_s=_RETRY_AFTER_S,
        )
