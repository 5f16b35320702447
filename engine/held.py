"""Memory that work under way holds, within a budget."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class HeldBytes:
    """Work of the event loop that begins only when its memory fits beside that of the others, in
    the order in which it came. Alone, it may try whatever its size."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._held = 0
        self._head_of_line = asyncio.Lock()
        self._freed = asyncio.Event()

    @asynccontextmanager
    async def hold(self, num_bytes: int) -> AsyncIterator[None]:
        async with self._head_of_line:
            while self._held and self._held + num_bytes > self.max_bytes:
                self._freed.clear()
                await self._freed.wait()
            self._held += num_bytes
        try:
            yield
        finally:
            self._held -= num_bytes
            self._freed.set()
