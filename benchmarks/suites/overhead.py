"""Processor time of a token in our saturated server, over that in its engine alone.

The load comes from a separate process on the same cores; only the server's own time counts. The
server's queue is long enough that it refuses no request.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

from benchmarks.rows import Plan, Row, Target, ratio_row
from benchmarks.servers import Served, our_server
from benchmarks.workbench import Workbench
from engine.async_engine import AsyncEngine
from engine.config import EngineConfig
from service.benchmarks.load import PROFILES, Traffic, saturate

_SECONDS, _QUICK_SECONDS = 20.0, 5.0
_CLIENTS = {"short": 32, "mixed": 16, "long": 4}
"""Enough to keep the engine busy. A turn waits for the requests under way at its end."""

_SERVER, _ENGINE = "server, 1000 tokens", "engine, 1000 tokens"


def measure(bench: Workbench, plan: Plan) -> Iterator[Row]:
    seconds = _QUICK_SECONDS if plan.quick else _SECONDS
    profiles = [PROFILES["mixed"]] if plan.quick else list(PROFILES.values())
    with our_server(bench.threads) as served:
        for traffic in profiles:
            yield asyncio.run(_overhead(bench, served, traffic, seconds, plan.turns(3)))


async def _overhead(
    bench: Workbench, served: Served, traffic: Traffic, seconds: float, turns: int
) -> Row:
    """In turns, after one of each to warm up."""
    config = EngineConfig(device="cpu", num_threads=bench.threads)
    taken: list[tuple[float, float]] = []
    async with AsyncEngine.load(config=config) as engine:
        await _of_server(served, traffic, seconds / 4)
        await _of_engine(engine, traffic, seconds / 4)
        for _ in range(turns):
            of_server = await _of_server(served, traffic, seconds)
            taken.append((of_server, await _of_engine(engine, traffic, seconds)))
    servers, engines = zip(*taken, strict=True)
    return ratio_row(
        {_SERVER: servers, _ENGINE: engines},
        _SERVER,
        _ENGINE,
        case=f"{traffic.name}, saturated by {_CLIENTS[traffic.name]} clients",
        measure="server's processor time over its engine's",
        target=Target("<=", 1.10),
    )


async def _of_server(served: Served, traffic: Traffic, seconds: float) -> float:
    """Processor seconds of 1,000 tokens."""
    before = served.cpu_s
    clients = _CLIENTS[traffic.name]
    point = await saturate(served.target, traffic, clients=clients, seconds=seconds)
    return 1e3 * (served.cpu_s - before) / (point.tokens_per_s * point.seconds)


async def _of_engine(engine: AsyncEngine, traffic: Traffic, seconds: float) -> float:
    """The same of the engine alone, with as many callers."""
    texts, tokens = traffic.texts(seed=0), 0
    began_s, ends_at = time.process_time(), time.monotonic() + seconds

    async def ask_again_and_again() -> None:
        nonlocal tokens
        while time.monotonic() < ends_at:
            [embedding] = await engine.embed([next(texts)])
            tokens += embedding.accounting.tokens

    await asyncio.gather(*(ask_again_and_again() for _ in range(_CLIENTS[traffic.name])))
    return 1e3 * (time.process_time() - began_s) / tokens
