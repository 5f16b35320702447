"""A long document that is cancelled: how long the next query waits, and what memory stays used."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from time import perf_counter

from benchmarks.rows import Plan, Row, Target, seconds_of
from benchmarks.workbench import Workbench
from engine.async_engine import AsyncEngine
from engine.platform.memory import resident_bytes
from engine.types import DocumentEvent, Progress

DOCUMENT_TOKENS, QUICK_DOCUMENT_TOKENS = 262_144, 32_768
QUERY_TOKENS = 64
CANCELLED_AT = 0.3
TURNS = 3
IN_TILES = Target("<=", 1.0)
STAYS = Target("<=", 0.05)
_SETTLES_S = 1.0


@dataclass(frozen=True)
class Cancelled:
    """One cancelled document."""

    tile_s: float  # the longest of its tiles
    query_alone_s: float
    query_s: float  # of a query sent at that moment
    used_bytes: int  # by the document, when it was cancelled
    remaining_bytes: int  # of these, a second later

    @property
    def waited_tiles(self) -> float:
        return max(0.0, self.query_s - self.query_alone_s) / self.tile_s


def measure(bench: Workbench, plan: Plan) -> Iterator[Row]:
    turns = asyncio.run(_cancel_in_turns(bench, plan))
    tokens = QUICK_DOCUMENT_TOKENS if plan.quick else DOCUMENT_TOKENS
    case = f"{tokens:,} tokens, given up at {CANCELLED_AT:.0%}"
    seconds = {
        "query sent then": tuple(turn.query_s for turn in turns),
        "query alone": tuple(turn.query_alone_s for turn in turns),
        "longest tile": tuple(turn.tile_s for turn in turns),
    }

    def row(measure: str, value: float, target: Target | None = None) -> Row:
        aim = None if plan.quick else target
        return Row(case=case, measure=measure, value=value, target=aim, seconds=seconds)

    yield row("the next query waits for, tiles", max(turn.waited_tiles for turn in turns), IN_TILES)
    yield row("the document held, MB", max(turn.used_bytes for turn in turns) / 1e6)
    stays = max(turn.remaining_bytes / turn.used_bytes for turn in turns)
    yield row("a second later, share still held", stays, STAYS)


async def _cancel_in_turns(bench: Workbench, plan: Plan) -> list[Cancelled]:
    tokens = QUICK_DOCUMENT_TOKENS if plan.quick else DOCUMENT_TOKENS
    document = bench.text.speeches(tokens)
    (query,) = bench.text.passages([QUERY_TOKENS])
    async with AsyncEngine([bench.lln_diag.model], config=bench.lln_diag.config) as engine:
        await _cancel_one(engine, document, query)  # loads and allocates what is needed once
        return [await _cancel_one(engine, document, query) for _ in range(plan.turns(TURNS))]


async def _cancel_one(engine: AsyncEngine, document: str, query: str) -> Cancelled:
    query_alone_s = await seconds_of(engine.embed([query]))
    before = resident_bytes()
    progress_at: list[float] = []
    far_enough = asyncio.Event()

    def listen(event: DocumentEvent) -> None:
        if isinstance(event, Progress):
            progress_at.append(perf_counter())
            if event.tokens_done >= CANCELLED_AT * event.tokens_total:
                far_enough.set()

    reading = asyncio.create_task(engine.embed_document(document, on_event=listen))
    await far_enough.wait()
    used = resident_bytes() - before
    reading.cancel()
    query_s = await seconds_of(engine.embed([query]))
    await asyncio.sleep(_SETTLES_S)
    return Cancelled(
        tile_s=max(later - earlier for earlier, later in pairwise(progress_at)),
        query_alone_s=query_alone_s,
        query_s=query_s,
        used_bytes=used,
        remaining_bytes=resident_bytes() - before,
    )
