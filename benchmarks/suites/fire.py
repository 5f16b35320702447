"""Short queries while a long document is embedded, with and without other work between tiles."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import cycle
from statistics import quantiles

from benchmarks.rows import Plan, Row, Target, seconds_of
from benchmarks.workbench import Workbench
from engine.async_engine import AsyncEngine
from engine.types import ChunkPlan

DOCUMENT_TOKENS, QUICK_DOCUMENT_TOKENS = 262_144, 16_384
QUERY_TOKENS = 64
QUERIES_ALONE, QUICK_QUERIES_ALONE = 60, 5
PERIOD_S = 1.0
P99_RISE = Target("<=", 0.250)
SLOWER = Target("<=", 1.3)
NO_SWEEPS = 1 << 30


@dataclass(frozen=True)
class Case:
    """A way to read the long document."""

    name: str
    min_sweep_tokens: int = 0
    chunks: ChunkPlan | None = None
    """For chunks alone, without the document's own vector."""

    async def read(self, engine: AsyncEngine, document: str) -> None:
        if self.chunks is None:
            await engine.embed_document(document)
        else:
            await engine.embed_chunks(document, chunks=self.chunks)


CASES = (
    Case("tile by tile"),
    Case("in linked passages", chunks=ChunkPlan(context="linked")),
    Case("in one go", NO_SWEEPS),
)


@dataclass(frozen=True)
class Fire:
    """Times of one engine: the document alone, the queries alone, and both at once."""

    document_alone_s: float
    document_s: float
    queries_alone_s: tuple[float, ...]
    queries_s: tuple[float, ...]

    @property
    def p99_alone(self) -> float:
        return _p99(self.queries_alone_s)

    @property
    def p99(self) -> float:
        return _p99(self.queries_s)


def measure(bench: Workbench, plan: Plan) -> Iterator[Row]:
    for case in CASES:
        fire = asyncio.run(_under_fire(bench, plan, case))
        is_judged = case.min_sweep_tokens == 0 and not plan.quick
        targets = (P99_RISE, SLOWER) if is_judged else (None, None)
        name = case.name
        yield _row(f"queries alone, {name}", "p99, s", fire.p99_alone, fire.queries_alone_s)
        yield _row(f"queries beside it, {name}", "p99, s", fire.p99, fire.queries_s)
        rise = fire.p99 - fire.p99_alone
        yield _row(
            f"queries beside it, {name}", "p99 rises by, s", rise, fire.queries_s, targets[0]
        )
        slower = fire.document_s / fire.document_alone_s
        times = (fire.document_s, fire.document_alone_s)
        yield _row(f"document, {name}", "with queries / alone", slower, times, targets[1])


async def _under_fire(bench: Workbench, plan: Plan, case: Case) -> Fire:
    tokens = QUICK_DOCUMENT_TOKENS if plan.quick else DOCUMENT_TOKENS
    num_alone = QUICK_QUERIES_ALONE if plan.quick else QUERIES_ALONE
    document = bench.text.speeches(tokens)
    queries = bench.text.passages([QUERY_TOKENS] * 100)
    model = bench.lln_diag.model
    config = replace(bench.lln_diag.config, min_sweep_tokens=case.min_sweep_tokens)
    async with AsyncEngine([model], config=config) as engine:
        alone = await _queries(engine, queries[:num_alone])
        document_alone_s = await seconds_of(case.read(engine, document))
        running = asyncio.create_task(seconds_of(case.read(engine, document)))
        beside = await _queries_beside(engine, queries, running)
        return Fire(document_alone_s, await running, alone, beside)


async def _queries(engine: AsyncEngine, queries: list[str]) -> tuple[float, ...]:
    """Sends one query a second, whether or not the one before is answered."""
    waiting = [await _sent(engine, query) for query in queries]
    return tuple(await asyncio.gather(*waiting))


async def _queries_beside(
    engine: AsyncEngine, queries: list[str], work: asyncio.Task[float]
) -> tuple[float, ...]:
    """The same, repeated until the work is done."""
    endless = cycle(queries)
    waiting = []
    while not work.done():
        waiting.append(await _sent(engine, next(endless)))
    return tuple(await asyncio.gather(*waiting))


async def _sent(engine: AsyncEngine, query: str) -> asyncio.Task[float]:
    """Sends a query, and returns when it is time for the next one."""
    answer = asyncio.create_task(seconds_of(engine.embed([query])))
    await asyncio.sleep(PERIOD_S)
    return answer


def _p99(seconds: tuple[float, ...]) -> float:
    return quantiles(seconds, n=100, method="inclusive")[98]


def _row(
    case: str,
    measure: str,
    value: float,
    seconds: tuple[float, ...],
    target: Target | None = None,
) -> Row:
    return Row(case=case, measure=measure, value=value, target=target, seconds={case: seconds})
