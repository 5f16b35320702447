"""A caller's deadline, over all the steps that its answer takes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

from engine.errors import DeadlineExceeded


class Deadline:
    """So long from now; None is as long as it takes."""

    def __init__(self, timeout_s: float | None) -> None:
        self.timeout_s = timeout_s
        self._started_at = time.monotonic()

    @property
    def left_s(self) -> float | None:
        if self.timeout_s is None:
            return None
        return self.timeout_s - (time.monotonic() - self._started_at)

    @property
    def exceeded(self) -> DeadlineExceeded:
        """The error that tells of it."""
        return DeadlineExceeded(
            f"The deadline of {self.timeout_s:g} s passed before the work was done.",
            limit=self.timeout_s,
            actual=round(time.monotonic() - self._started_at, 6),
        )

    def check(self) -> None:
        """Raises if the time is up."""
        if self.left_s is not None and self.left_s <= 0:
            raise self.exceeded

    @contextmanager
    def as_a_whole(self) -> Iterator[None]:
        """Where a part was told only what was left, the caller hears of what it asked for."""
        try:
            yield
        except DeadlineExceeded:
            raise self.exceeded from None

    @asynccontextmanager
    async def over(self) -> AsyncIterator[None]:
        """Ends the work inside when the time is up."""
        try:
            async with asyncio.timeout(self.left_s):
                yield
        except TimeoutError:
            raise self.exceeded from None
