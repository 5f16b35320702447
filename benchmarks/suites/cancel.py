"""A long document whose caller leaves on the way: who waits then, and what memory stays taken."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from time import perf_counter

from benchmarks.plan import Plan
from benchmarks.row import Row, Target
from benchmarks.timing import seconds_of
from benchmarks.workbench import Workbench
from engine.benchmarks.memory import resident_bytes
from engine.engine import AsyncEngine
from engine.types import DocumentEvent, Progress

DOCUMENT_TOKENS, QUICK_DOCUMENT_TOKENS = 262_144, 32_768
QUERY_TOKENS = 64
LEAVES_AT = 0.3
TURNS = 3
IN_TILES = Target("<=", 1.0)
STAYS = Target("<=", 0.05)
_SETTLES_S = 1.0


@dataclass(frozen=True)
class Left:
    """One document that was given up."""

    tile_s: float  # the longest of its tiles
    query_alone_s: float
    query_s: float  # of a query sent at that moment
    held_bytes: int  # by the document, when its caller left
    kept_bytes: int  # of these, a second later

    @property
    def waited_tiles(self) -> float:
        return max(0.0, self.query_s - self.query_alone_s) / self.tile_s


def measure(bench: Workbench, plan: Plan) -> Iterator[Row]:
    turns = asyncio.run(_turns(bench, plan))
    tokens = QUICK_DOCUMENT_TOKENS if plan.quick else DOCUMENT_TOKENS
    case = f"{tokens:,} tokens, given up at {LEAVES_AT:.0%}"
    seconds = {
        "query sent then": tuple(left.query_s for left in turns),
        "query alone": tuple(left.query_alone_s for left in turns),
        "longest tile": tuple(left.tile_s for left in turns),
    }

    def row(measure: str, value: float, target: Target | None = None) -> Row:
        aim = None if plan.quick else target
        return Row(case=case, measure=measure, value=value, target=aim, seconds=seconds)

    yield row("the next query waits for, tiles", max(left.waited_tiles for left in turns), IN_TILES)
    yield row("the document held, MB", max(left.held_bytes for left in turns) / 1e6)
    stays = max(left.kept_bytes / left.held_bytes for left in turns)
    yield row("a second later, share still held", stays, STAYS)


async def _turns(bench: Workbench, plan: Plan) -> list[Left]:
    tokens = QUICK_DOCUMENT_TOKENS if plan.quick else DOCUMENT_TOKENS
    document = bench.text.library(tokens)
    (query,) = bench.text.passages([QUERY_TOKENS])
    async with AsyncEngine([bench.lln_diag.model], config=bench.lln_diag.config) as engine:
        await _given_up(engine, document, query)  # what is loaded and allocated once, is
        return [await _given_up(engine, document, query) for _ in range(plan.turns(TURNS))]


async def _given_up(engine: AsyncEngine, document: str, query: str) -> Left:
    query_alone_s = await seconds_of(engine.embed([query]))
    before = resident_bytes()
    news: list[float] = []
    far_enough = asyncio.Event()

    def listen(event: DocumentEvent) -> None:
        if isinstance(event, Progress):
            news.append(perf_counter())
            if event.tokens_done >= LEAVES_AT * event.tokens_total:
                far_enough.set()

    reading = asyncio.create_task(engine.embed_document(document, on_event=listen))
    await far_enough.wait()
    held = resident_bytes() - before
    reading.cancel()
    query_s = await seconds_of(engine.embed([query]))
    await asyncio.sleep(_SETTLES_S)
    return Left(
        tile_s=max(later - earlier for earlier, later in pairwise(news)),
        query_alone_s=query_alone_s,
        query_s=query_s,
        held_bytes=held,
        kept_bytes=resident_bytes() - before,
    )
