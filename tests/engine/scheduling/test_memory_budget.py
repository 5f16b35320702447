"""Work waits for room in memory, in the order of its arrival."""

from __future__ import annotations

import asyncio

from engine.scheduling.admission import MemoryBudget


def test_work_begins_in_order_as_memory_allows() -> None:
    began: list[int] = []

    async def work(room: MemoryBudget, number: int, num_bytes: int) -> None:
        async with room.reserve(num_bytes):
            began.append(number)
            await asyncio.sleep(0.01)

    async def run() -> None:
        room = MemoryBudget(10)
        sizes = [50, 6, 6, 3]
        await asyncio.gather(*(work(room, number, size) for number, size in enumerate(sizes)))
        async with room.reserve(10):
            assert began == [0, 1, 2, 3]

    asyncio.run(run())
