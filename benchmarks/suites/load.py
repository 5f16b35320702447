"""Our server under an open loop of requests: throughput and latency by load, also beyond capacity.

Arrivals are a Poisson process. A latency counts from when its request should have been sent. The
load comes from a separate process on the same cores.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from benchmarks.rows import Plan, Row, Target
from benchmarks.servers import Served, our_server
from benchmarks.workbench import Workbench
from service.benchmarks.load import PROFILES, LoadPoint, Traffic, offer, saturate

SHARES, QUICK_SHARES = (0.25, 0.5, 0.75, 0.9, 1.0, 1.5, 2.0), (0.5, 2.0)
SECONDS, QUICK_SECONDS = 20.0, 5.0
QUEUE_TOKENS = 32_768
"""A queue of a few seconds of work on two cores, so an overload is refused within seconds."""
_CLIENTS = 32


def measure(bench: Workbench, plan: Plan) -> Iterator[Row]:
    seconds = QUICK_SECONDS if plan.quick else SECONDS
    profiles = [PROFILES["mixed"]] if plan.quick else PROFILES.values()
    for traffic in profiles:
        with our_server(bench.threads, LLN_ENGINE__MAX_QUEUE_TOKENS=str(QUEUE_TOKENS)) as served:
            yield from _loads(served, traffic, seconds, QUICK_SHARES if plan.quick else SHARES)


def _loads(
    served: Served, traffic: Traffic, seconds: float, shares: tuple[float, ...]
) -> Iterator[Row]:
    capacity = asyncio.run(
        saturate(served.target, traffic, clients=_CLIENTS, seconds=seconds)
    ).answered_per_s
    peak = 0.0
    for share in shares:
        point = asyncio.run(
            offer(served.target, traffic, rate_per_s=share * capacity, seconds=seconds)
        )
        peak = max(peak, point.tokens_per_s)
        yield from _rows(f"{traffic.name}, {point.offered_per_s:.3g} requests/s", point)
    yield Row(
        case=f"{traffic.name}, {shares[-1]:g} times its capacity offered",
        measure="goodput over its peak",
        value=point.tokens_per_s / peak,
        target=Target(">=", 0.9),
        seconds={},
        note=f"{point.tokens_per_s:.0f} tokens/s of {peak:.0f}, "
        f"{point.refused_per_s:.3g} refused/s, {point.failed} failed",
    )
    yield Row(
        case=f"{traffic.name}, {shares[-1]:g} times its capacity offered",
        measure="refused with Retry-After, of what was not answered",
        value=point.refused_per_s / max(point.offered_per_s - point.answered_per_s, 1e-9),
        seconds={"longest wait asked for": (point.retry_after_s,)},
    )


def _rows(case: str, point: LoadPoint) -> Iterator[Row]:
    latencies = {"p50": (point.p50_s,), "p95": (point.p95_s,), "p99": (point.p99_s,)}
    yield Row(
        case=case,
        measure="tokens/s; times are p50 / p95 / p99",
        value=point.tokens_per_s,
        seconds=latencies,
    )
    if point.failed:
        yield Row(
            case=case,
            measure="failed, neither answered nor refused",
            value=point.failed,
            target=Target("<=", 0),
            seconds={},
            note=point.failures,
        )
