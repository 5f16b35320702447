"""Our server under mixed load for long: does memory grow, do descriptors leak, does anything fail?

About half of what the server can answer is offered, in slices. Between the slices come what
clients do besides: documents, diagnoses, mistakes, and leaving before the answer.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median
from typing import Any

from benchmarks.plan import Plan
from benchmarks.row import Row, Target
from benchmarks.served import Served, our_server
from benchmarks.workbench import Workbench
from service.load.client import HttpClient
from service.load.open_loop import offer, saturate
from service.load.traffic import PROFILES

_SLICE_S = 10.0
_WARM_UP = 0.2
"""Of the whole: buffers grow to the largest batch seen, and stay."""
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


def measure(bench: Workbench, plan: Plan) -> Iterator[Row]:
    seconds = 60 * plan.minutes
    with our_server(bench.threads) as served:
        samples, asked, failures = asyncio.run(_soak(served, seconds))
    warm = [sample for sample in samples if sample.at_s >= _WARM_UP * seconds]
    quarter = max(1, len(warm) // 4)
    first, last = warm[:quarter], warm[-quarter:]
    growth = _median_bytes(last) / _median_bytes(first) - 1
    case = f"{plan.minutes:g} minutes, {asked} requests"
    yield Row(
        case=case,
        measure="growth of resident memory after warm-up",
        value=growth,
        target=Target("<=", 0.02),
        seconds={},
    )
    yield Row(
        case=case,
        measure="descriptors at the end less those after warm-up",
        value=last[-1].descriptors - first[0].descriptors,
        target=Target("<=", 5),
        seconds={},
    )
    yield Row(
        case=case,
        measure="answers that were not what was to be expected",
        value=failures,
        target=Target("<=", 0),
        seconds={},
    )


async def _soak(served: Served, seconds: float) -> tuple[list[_Sample], int, int]:
    traffic = PROFILES["mixed"]
    capacity = await saturate(served.target, traffic, clients=16, seconds=_SLICE_S)
    rate = capacity.answered_per_s / 2
    began_at, samples, asked, failures = time.monotonic(), [], 0, 0
    while (spent := time.monotonic() - began_at) < seconds:
        slice_s = min(_SLICE_S, seconds / 6)
        point = await offer(
            served.target, traffic, rate_per_s=rate, seconds=slice_s, seed=int(spent)
        )
        asked += round(point.answered_per_s * slice_s) + len(_ODDITIES)
        failures += point.failed + await _oddities(served)
        await _leave_early(served)
        samples.append(await asyncio.to_thread(_sample, served, spent))
    return samples, asked, failures


async def _oddities(served: Served) -> int:
    """How many of the other requests were not answered as they should be."""
    client = HttpClient(served.target)
    wrong = 0
    for path, body, status in _ODDITIES:
        answer = await client.post(path, json.dumps(body).encode())
        wrong += answer.status != status
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


def _median_bytes(samples: list[_Sample]) -> float:
    return median(sample.resident_bytes for sample in samples)
