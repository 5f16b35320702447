"""Stretches that wait at a worker: the next one begins when all rows of one before have begun."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import AsyncExitStack, suppress

import pytest

from service.bulk.pieces import Stretch
from service.bulk.rows import TextRow
from service.bulk.turns import Turns

ROWS = [TextRow(id=number, text="a text") for number in range(3)]


def stretches_of(number: int) -> list[Stretch]:
    return [Stretch(part=part, digest="", first=0, rows=ROWS) for part in range(number)]


async def embed(turns: Turns, stretch: Stretch, seen: list[str], *, fails: bool = False) -> None:
    """Draws rows in a thread, as the embedder does, and is done with them a while later."""
    async with turns.turn(stretch) as drawn:
        seen.append(f"{stretch.part} begins")

        def rows() -> Iterator[object]:
            for one in drawn:
                yield from one.rows

        source = rows()
        while await asyncio.to_thread(next, source, None) is not None:
            if fails:
                raise ValueError("a row that ends the job")
        seen.append(f"{stretch.part} has begun")
        await asyncio.sleep(0.05)
        seen.append(f"{stretch.part} is done")


async def free_turns(turns: Turns) -> int:
    """How many stretches could begin now."""
    (stretch,) = stretches_of(1)
    found = 0
    async with AsyncExitStack() as taken:
        with suppress(TimeoutError):
            while True:
                async with asyncio.timeout(0.05):
                    await taken.enter_async_context(turns.turn(stretch))
                found += 1
    return found


def test_the_next_begins_before_one_is_done_and_not_before_it_has_begun() -> None:
    async def run() -> list[str]:
        turns, seen = Turns(1), list[str]()
        await asyncio.gather(*(embed(turns, one, seen) for one in stretches_of(3)))
        return seen

    seen = asyncio.run(run())
    for before, after in (("0", "1"), ("1", "2")):
        places = [seen.index(f"{before} begins"), seen.index(f"{after} begins")]
        assert places[0] < places[1] < seen.index(f"{before} is done")


@pytest.mark.parametrize("at_once", [1, 2])
def test_a_turn_ends_once_also_of_a_stretch_that_fails(at_once: int) -> None:
    async def run() -> tuple[list[str], int]:
        turns, seen = Turns(at_once), list[str]()
        work = [embed(turns, one, seen, fails=one.part == 0) for one in stretches_of(4)]
        failed, *others = await asyncio.gather(*work, return_exceptions=True)
        assert isinstance(failed, ValueError)
        assert others == [None] * 3
        return seen, await free_turns(turns)

    seen, free = asyncio.run(run())
    assert [f"{part} is done" in seen for part in range(4)] == [False, True, True, True]
    assert free == at_once
