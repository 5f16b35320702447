"""What workers take: every row once, also those of a worker that died, and little at the end."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.bulk.parts import PART_TOKENS
from service.bulk.pieces import Stretch
from service.bulk.rows import TextRow
from service.bulk.waiting import WaitingStretches


def stretches_of(lengths: Sequence[int], rows: int) -> list[Stretch]:
    """Of texts of so many tokens, each stretch with so many rows."""
    texts = [TextRow(id=n, text="x" * 4 * length) for n, length in enumerate(lengths)]
    return [
        Stretch(part=at // rows, digest="", first=0, rows=texts[at : at + rows])
        for at in range(0, len(texts), rows)
    ]


def ids_of(stretch: Stretch) -> list[tuple[int, int]]:
    return [(stretch.part, stretch.first + at) for at in range(len(stretch.rows))]


@settings(deadline=None, max_examples=40)
@given(
    st.lists(st.integers(0, 9_000), max_size=40),
    st.integers(1, 7),
    st.integers(1, 4),
    st.lists(st.integers(0, 3), max_size=10),
)
def test_every_row_is_taken_once_whoever_dies(
    lengths: list[int], rows: int, num_takers: int, deaths: list[int]
) -> None:
    given_out = stretches_of(lengths, rows)

    async def run() -> list[tuple[int, int]]:
        waiting = WaitingStretches(iter(given_out), num_takers=num_takers)
        done: list[tuple[int, int]] = []

        async def work() -> None:
            while (stretch := await waiting.take()) is not None:
                await asyncio.sleep(0)
                if deaths and len(stretch.rows) > (kept := deaths.pop()):
                    done.extend(ids_of(stretch)[:kept])
                    await waiting.finish(stretch.after(kept))
                else:
                    done.extend(ids_of(stretch))
                    await waiting.finish()

        async with asyncio.timeout(20):
            await asyncio.gather(*(work() for _ in range(num_takers)))
        return done

    assert sorted(asyncio.run(run())) == sorted(
        one for stretch in given_out for one in ids_of(stretch)
    )


@pytest.mark.parametrize("num_takers", [2, 3, 8])
@pytest.mark.parametrize("num_parts", [1, 3, 9])
def test_all_end_at_about_the_same_time(num_takers: int, num_parts: int) -> None:
    """Though a part takes a worker long, and there is no telling how many there are."""
    text = 234  # and 16, for being one
    rows = PART_TOKENS // (text + 16)
    given_out = stretches_of([text] * rows * num_parts, rows)
    total = sum(stretch.cost for stretch in given_out)

    async def makespan() -> int:
        waiting = WaitingStretches(given_out, num_takers=num_takers)
        free = [0] * num_takers
        # The one that is free next takes the next; those that are done by then say so.
        while (stretch := await waiting.take()) is not None:
            heapq.heappush(free, heapq.heappop(free) + stretch.cost)
            await waiting.finish()
        return max(free)

    assert asyncio.run(makespan()) - total / num_takers < 3_500
