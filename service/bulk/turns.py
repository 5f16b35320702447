"""Turns of the stretches that a worker was sent: which of them it draws rows from."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import cache

from service.bulk.pieces import Stretch


class Turns:
    """So many stretches have a turn at once, in the order in which they came.

    A turn ends when the last row has begun, not when it is done: the first rows of the next stretch
    follow without a gap.
    """

    def __init__(self, at_once: int) -> None:
        self._free = asyncio.Semaphore(at_once)
        self._loop = asyncio.get_running_loop()

    @asynccontextmanager
    async def turn(self, stretch: Stretch) -> AsyncIterator[Iterator[Stretch]]:
        """Waits for a turn. It ends when whoever draws the stretch, in any thread, asks for another
        one after it."""
        await self._free.acquire()
        end_turn = cache(self._free.release)  # once

        def stretches() -> Iterator[Stretch]:
            yield stretch
            self._loop.call_soon_threadsafe(end_turn)

        try:
            yield stretches()
        finally:
            end_turn()
