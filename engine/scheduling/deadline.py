"""A caller's deadline, over all the steps that its answer takes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

from engine.errors import DeadlineExceeded


class Deadline:
    """A number of seconds from now; None sets no limit."""

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
        """The error to raise when the time is up."""
        assert self.timeout_s is not None, "no deadline passes where there is none"
        return deadline_exceeded(self.timeout_s, time.monotonic() - self._started_at)

    def check(self) -> None:
        """Raise DeadlineExceeded if the time is up."""
        if self.left_s is not None and self.left_s <= 0:
            raise self.exceeded

    @contextmanager
    def as_a_whole(self) -> Iterator[None]:
        """Report the whole deadline to the caller where a part was given only what was left."""
        try:
            yield
        except DeadlineExceeded:
            raise self.exceeded from None

    @asynccontextmanager
    async def over(self) -> AsyncIterator[None]:
        """Cancel the work inside and raise DeadlineExceeded when the time is up."""
        try:
            async with asyncio.timeout(self.left_s):
                yield
        except TimeoutError:
            raise self.exceeded from None


def deadline_exceeded(
    timeout_s: float, waited_s: float, *, before: str = "the work was done"
) -> DeadlineExceeded:
    return DeadlineExceeded(
        f"The deadline of {timeout_s:g} s passed before {before}."
        if timeout_s > 0
        else "The deadline had already passed when the request arrived.",
        limit=timeout_s,
        actual=round(waited_s, 6),
    )
