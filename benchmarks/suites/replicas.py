"""Two replicas of a core each on Ray Serve: routing by tokens against round robin, and one server.

Short and long texts arrive at random times, at 70 % of what the two replicas answer when they never
wait. All policies route for the same replicas, in turns; the plain server has both cores.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter, sleep

from benchmarks.replicas.policies import (
    BY_REQUESTS,
    BY_TOKENS,
    POLICIES,
    ROUND_ROBIN,
    SHORT_LENGTHS,
    VARIABLE,
)
from benchmarks.rows import Plan, Row, Target, ratio_row
from benchmarks.servers import Served, free_port, other_server, our_server
from benchmarks.workbench import Workbench
from service.benchmarks.load import LoadPoint, Traffic, offer, saturate
from service.benchmarks.load_client import HttpClient

ONE_SERVER = "one server"
PAGE_TOKENS, DOCUMENT_TOKENS = 1_000, 8_192
"""A page is read in one go. A document is read tile by tile, with other work in between."""
LONG_WEIGHTS = {PAGE_TOKENS: 6.0, DOCUMENT_TOKENS: 1.0}
LOAD = 0.7
TURNS, SECONDS, QUICK_SECONDS = 3, 25.0, 6.0
CAPACITY_S = 20.0
CLIENTS = 16
ALONE_CALLS = 200
_SETTLE_S = 1.0
RouteBy = Callable[[str], None]
BETTER = Target(">=", 2)

SHORT = Traffic(name="short", weights=SHORT_LENGTHS)
LONG = Traffic(name="long", weights=LONG_WEIGHTS)
BOTH = Traffic(name="both", weights={**SHORT_LENGTHS, **LONG_WEIGHTS})
SHORT_SHARE = sum(SHORT_LENGTHS.values()) / sum(BOTH.weights.values())


@dataclass(frozen=True)
class Turn:
    short: LoadPoint
    long: LoadPoint


def measure(bench: Workbench, plan: Plan) -> Iterator[Row]:
    with (
        our_server(2) as server,
        _replicas() as (replicas, route_by),
    ):
        yield from _alone(server, replicas, plan)
        route_by(ROUND_ROBIN)
        capacity_s = QUICK_SECONDS if plan.quick else CAPACITY_S
        full = asyncio.run(saturate(replicas.target, BOTH, clients=CLIENTS, seconds=capacity_s))
        rate = LOAD * full.answered_per_s
        turns = _take_turns(server, replicas, route_by, rate, plan)
        yield from _rows(turns, rate, plan)


def _take_turns(
    server: Served, replicas: Served, route_by: RouteBy, rate: float, plan: Plan
) -> dict[str, list[Turn]]:
    taken: dict[str, list[Turn]] = {}
    seconds = QUICK_SECONDS if plan.quick else SECONDS
    for number in range(plan.turns(TURNS)):
        for name in (*POLICIES, ONE_SERVER):
            if name != ONE_SERVER:
                route_by(name)
            served = server if name == ONE_SERVER else replicas
            sleep(_SETTLE_S)
            turn = asyncio.run(_turn(served, rate, seconds, seed=number))
            taken.setdefault(name, []).append(turn)
    return taken


async def _turn(served: Served, rate: float, seconds: float, seed: int) -> Turn:
    """The same arrivals and texts for all that take this turn."""
    few, many = rate * (1 - SHORT_SHARE), rate * SHORT_SHARE
    short, long = await asyncio.gather(
        offer(served.target, SHORT, rate_per_s=many, seconds=seconds, seed=2 * seed),
        offer(served.target, LONG, rate_per_s=few, seconds=seconds, seed=2 * seed + 100),
    )
    return Turn(short, long)


def _rows(turns: Mapping[str, list[Turn]], rate: float, plan: Plan) -> Iterator[Row]:
    few, many = rate * (1 - SHORT_SHARE), rate * SHORT_SHARE
    case = (
        f"{many:.3g} texts of 16 to 64 tokens and {few:.2g} of 1,000 or 8,192 (six to one) a second"
    )
    short_p99 = {name: tuple(turn.short.p99_s for turn in taken) for name, taken in turns.items()}
    short_p50 = {name: tuple(turn.short.p50_s for turn in taken) for name, taken in turns.items()}
    long_p50 = {name: tuple(turn.long.p50_s for turn in taken) for name, taken in turns.items()}
    for name in (ROUND_ROBIN, BY_REQUESTS, ONE_SERVER):
        yield ratio_row(
            short_p99,
            name,
            BY_TOKENS,
            case=case,
            measure=f"p99 of short texts, {name} / by tokens",
            target=BETTER if name == ROUND_ROBIN and not plan.quick else None,
        )
    for name in (ROUND_ROBIN, ONE_SERVER):
        for what, taken in (("short", short_p50), ("long", long_p50)):
            measured = f"p50 of {what} texts, {name} / by tokens"
            yield ratio_row(taken, name, BY_TOKENS, case=case, measure=measured)
    points = [
        point for taken in turns.values() for turn in taken for point in (turn.short, turn.long)
    ]
    yield Row(
        case=case,
        measure="failed or refused",
        value=sum(point.failed + point.refused_per_s * point.seconds for point in points),
        target=Target("<=", 0),
        seconds={},
        note="; ".join(point.failures for point in points if point.failures),
    )


def _alone(server: Served, replicas: Served, plan: Plan) -> Iterator[Row]:
    """What Serve adds to a short request that nothing else disturbs."""
    texts = SHORT.requests(seed=1)
    taken: dict[str, list[float]] = {"replicas": [], ONE_SERVER: []}

    async def ask() -> None:
        clients = {"replicas": HttpClient(replicas.target), ONE_SERVER: HttpClient(server.target)}
        for number in range(ALONE_CALLS // (10 if plan.quick else 1)):
            request = next(texts)
            for name, client in clients.items():
                asked_at = perf_counter()
                answer = await client.post(request.path, request.body)
                assert answer.status == 200, answer.status
                if number >= 10:
                    taken[name].append(perf_counter() - asked_at)
        for client in clients.values():
            client.close()

    asyncio.run(ask())
    middle = {name: median(seconds) for name, seconds in taken.items()}
    yield Row(
        case="a text of 16 to 64 tokens, one after the other",
        measure="p50, a replica behind Serve / a plain server",
        value=middle["replicas"] / middle[ONE_SERVER],
        seconds={name: (seconds,) for name, seconds in middle.items()},
    )


@contextmanager
def _replicas() -> Iterator[tuple[Served, RouteBy]]:
    """Two replicas, and a function that says by what to route."""
    with TemporaryDirectory() as folder:
        policy = Path(folder) / "routing"

        def route_by(name: str) -> None:
            written = policy.with_suffix(".new")
            written.write_text(name)
            written.replace(policy)

        route_by(BY_TOKENS)
        port = free_port()
        environment = {
            VARIABLE: str(policy),
            "LLN_MODELS": "default",
            "LLN_HTTP_PORT": str(port),
            "LLN_GRPC_PORT": str(free_port()),
            "LLN_BATCH_FOLDER": "",
            "LLN_BENCHMARK_HISTORY": ":memory:",
        }
        command = [sys.executable, "-m", "benchmarks.replicas.routing"]
        with other_server(command, port, **environment) as served:
            yield served, route_by
