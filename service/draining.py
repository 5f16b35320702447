"""The end of the server as all its parts see it: whether it has begun, and by when it is over."""

from __future__ import annotations

import asyncio

from engine.deadline import Deadline


class Draining:
    """One deadline for all that ends with the server, which counts from the beginning of the end:
    parts that stop one after the other have no more time together than each has alone."""

    def __init__(self, timeout_s: float) -> None:
        self.deadline = Deadline(timeout_s)
        """By when what was accepted has to be done, once draining has begun."""
        self._begun = asyncio.Event()

    @property
    def begun(self) -> bool:
        return self._begun.is_set()

    @property
    def left_s(self) -> float:
        return max(self.deadline.left_s or 0.0, 0.0)

    def begin(self) -> None:
        """The first call counts."""
        if not self.begun:
            self.deadline = Deadline(self.deadline.timeout_s)
            self._begun.set()

    async def wait(self) -> None:
        """Until draining begins."""
        await self._begun.wait()
