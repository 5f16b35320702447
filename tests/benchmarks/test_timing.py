"""Benchmarks: awaited calls are timed, and queries are sent beside work until it is done."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from benchmarks.rows import seconds_of
from benchmarks.suites import fire

QUERIES = ["a", "b", "c"]


class Listener:
    """In an engine's place: answers nothing, after a while, and remembers what was asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def embed(self, texts: Sequence[str]) -> None:
        self.asked += texts
        await asyncio.sleep(0.05)


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(fire, "PERIOD_S", 0.001)
    return Listener()


def test_what_is_waited_for_is_timed() -> None:
    assert asyncio.run(seconds_of(asyncio.sleep(0.05))) >= 0.05


def test_each_query_is_sent_once_without_waiting_for_the_one_before(engine: Any) -> None:
    taken = asyncio.run(fire._queries(engine, QUERIES))
    assert engine.asked == QUERIES
    assert min(taken) >= 0.05


def test_queries_are_sent_over_and_over_until_the_work_is_done(engine: Any) -> None:
    async def beside_work() -> tuple[float, ...]:
        work = asyncio.create_task(seconds_of(asyncio.sleep(0.3)))
        return await fire._queries_beside(engine, QUERIES, work)

    taken = asyncio.run(beside_work())
    assert len(taken) == len(engine.asked) > len(QUERIES)
    assert engine.asked[: len(QUERIES) + 1] == [*QUERIES, QUERIES[0]]
