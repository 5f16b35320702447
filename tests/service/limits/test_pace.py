"""A pace lets bytes pass at a rate, and whoever waits for it can leave."""

from __future__ import annotations

import asyncio

import pytest

from service.fairness import Pace


@pytest.mark.parametrize("steps_between", range(4))
def test_a_caller_that_leaves_as_the_pace_changes_is_gone(steps_between: int) -> None:
    async def run() -> None:
        pace = Pace(1.0)
        pace.add(1_000)  # the next one waits for a quarter of an hour
        waiting = asyncio.create_task(pace.take(1))
        for _ in range(5):
            await asyncio.sleep(0)
        pace.add(0)
        for _ in range(steps_between):
            await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait({waiting}, timeout=5)
        assert waiting.cancelled()

    asyncio.run(run())


def test_bytes_that_are_given_back_let_the_next_pass() -> None:
    async def run() -> None:
        pace = Pace(1.0)
        await pace.take(1_000)
        waiting = asyncio.create_task(pace.take(1))
        await asyncio.sleep(0.01)
        assert not waiting.done()
        pace.add(-1_000)
        async with asyncio.timeout(5):
            await waiting

    asyncio.run(run())
