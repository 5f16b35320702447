"""Our server under mixed load for long: does memory grow, do descriptors leak, does anything fail?

Requests come in slices, at about half the server's capacity. Between the slices clients send
documents, diagnoses and invalid requests, and disconnect before the answer.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from benchmarks.rows import Plan, Row, Target
from benchmarks.servers import Served, our_server
from benchmarks.workbench import Workbench
from service.benchmarks.load import PROFILES, offer, saturate
from service.benchmarks.load_client import HttpClient

_SLICE_S = 10.0
_WARM_UP = 0.2
"""Share of the whole: buffers grow to the largest batch seen, and stay."""
_MAX_FAILURES_SHOWN = 10
_ODDITIES: tuple[tuple[str, dict[str, Any], int], ...] = (
    ("/v1/documents", {"text": "a passage " * 3000, "chunking": {"type": "fixed"}}, 200),
    ("/v1/diagnostics", {"text": "a short text", "layers": [0]}, 200),
    ("/v1/tokenize", {"text": "a short text"}, 200),
    ("/v1/embeddings", {"input": []}, 400),
    ("/v1/embeddings", {"inputs": "a mistake"}, 422),
    ("/v1/nowhere", {}, 404),
)


@dataclass(frozen=True)
class _Sample:
    at_s: float
    resident_bytes: float
    descriptors: float


@dataclass
class _Soaked:
    samples: list[_Sample] = field(default_factory=list)
    asked: int = 0
    failed: int = 0
    failures: list[str] = field(default_factory=list)


def measure(bench: Workbench, plan: Plan) -> Iterator[Row]:
    seconds = 60 * plan.minutes
    with our_server(bench.threads) as served:
        soaked = asyncio.run(_soak(served, seconds))
    warm = [sample for sample in soaked.samples if sample.at_s >= _WARM_UP * seconds]
    warm = warm or soaked.samples[-1:]  # a slice on a crowded machine may outlast a short soak
    case = f"{plan.minutes:g} minutes, {soaked.asked} requests"
    yield _growth_of_memory(case, warm)
    yield Row(
        case=case,
        measure="descriptors at the end less those after warm-up",
        value=warm[-1].descriptors - warm[0].descriptors,
        target=Target("<=", 5),
        seconds={},
        note=f"from {warm[0].descriptors:.0f} to {warm[-1].descriptors:.0f}, "
        f"at most {max(sample.descriptors for sample in warm):.0f}",
    )
    yield Row(
        case=case,
        measure="answers that were not what was to be expected",
        value=soaked.failed,
        target=Target("<=", 0),
        seconds={},
        note="; ".join(soaked.failures[:_MAX_FAILURES_SHOWN]),
    )


def _growth_of_memory(case: str, warm: list[_Sample]) -> Row:
    """The last quarter's median over the first one's, because single samples fluctuate."""
    quarter = max(1, len(warm) // 4)
    quarters = [warm[at : at + quarter] for at in range(0, len(warm), quarter)]
    medians = [median(sample.resident_bytes for sample in part) for part in quarters]
    last = median(sample.resident_bytes for sample in warm[-quarter:])
    by_quarter = ", ".join(f"{resident / 2**20:.0f}" for resident in medians)
    return Row(
        case=case,
        measure="growth of resident memory after warm-up",
        value=last / medians[0] - 1,
        target=Target("<=", 0.02),
        seconds={},
        note=f"MiB in the course of it: {by_quarter}",
    )


async def _soak(served: Served, seconds: float) -> _Soaked:
    traffic, soaked = PROFILES["mixed"], _Soaked()
    capacity = await saturate(served.target, traffic, clients=16, seconds=_SLICE_S)
    rate = capacity.answered_per_s / 2
    began_at = time.monotonic()
    while (spent := time.monotonic() - began_at) < seconds:
        slice_s = min(_SLICE_S, seconds / 6)
        point = await offer(
            served.target, traffic, rate_per_s=rate, seconds=slice_s, seed=int(spent)
        )
        soaked.asked += round(point.answered_per_s * point.seconds) + len(_ODDITIES)
        wrong = await _oddities(served)
        soaked.failed += point.failed + len(wrong)
        soaked.failures += [f"at {spent:.0f} s {what}" for what in (point.failures, *wrong) if what]
        await _leave_early(served)
        soaked.samples.append(await asyncio.to_thread(_sample, served, spent))
    return soaked


async def _oddities(served: Served) -> list[str]:
    """Sends the other requests, and returns those with an unexpected status."""
    client = HttpClient(served.target)
    wrong = []
    for path, body, status in _ODDITIES:
        answer = await client.post(path, json.dumps(body).encode())
        if answer.status != status:
            wrong.append(f"POST {path} answered {answer.status} instead of {status}")
    client.close()
    return wrong


async def _leave_early(served: Served) -> None:
    client = HttpClient(served.target)
    body = json.dumps({"input": "a long text " * 2000}).encode()
    callers = [asyncio.create_task(client.post("/v1/embeddings", body)) for _ in range(4)]
    await asyncio.sleep(0.05)
    for caller in callers:
        caller.cancel()
    await asyncio.gather(*callers, return_exceptions=True)
    client.close()


def _sample(served: Served, at_s: float) -> _Sample:
    resident = served.metric("process_resident_memory_bytes")
    return _Sample(at_s, resident, served.metric("process_open_fds"))
