"""An open loop: arrivals at random, independent of answers, as many users make them.

A latency counts from when its request should have been sent, so that a server (or a client) that
falls behind cannot hide the wait of those it kept from being sent.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from service.load.client import HttpAnswer, HttpClient, Target
from service.load.traffic import Request, Traffic

ANSWERED, REFUSED = 200, 429
_DECODER = json.JSONDecoder()
_GRACE_S = 30.0
"""How long the last answers are waited for."""


@dataclass(frozen=True, kw_only=True)
class LoadPoint:
    """What one offered load came to. Latencies are of answered requests, from their arrival."""

    offered_per_s: float
    seconds: float
    """From the first arrival to the last answer."""
    answered_per_s: float
    refused_per_s: float
    failed: int
    failures: str
    """How: "500 x 3, ConnectionResetError x 1"; empty where nothing failed."""
    tokens_per_s: float
    p50_s: float
    p95_s: float
    p99_s: float
    retry_after_s: float
    """The longest wait that a refusal asked for."""


@dataclass
class _Tally:
    latencies: list[float] = field(default_factory=list)
    tokens: int = 0
    refused: int = 0
    failures: Counter[str] = field(default_factory=Counter)
    retry_after_s: float = 0.0
    last_answer_at: float = 0.0

    def add(self, answer: HttpAnswer, arrived_at: float, now: float) -> None:
        self.last_answer_at = now
        if answer.status == ANSWERED:
            self.latencies.append(now - arrived_at)
            self.tokens += _tokens(answer)
        elif answer.status == REFUSED and "retry-after" in answer.headers:
            self.refused += 1
            self.retry_after_s = max(self.retry_after_s, float(answer.headers["retry-after"]))
        else:
            self.failures[str(answer.status)] += 1

    def point(self, offered_per_s: float, seconds: float) -> LoadPoint:
        latencies = sorted(self.latencies)
        return LoadPoint(
            offered_per_s=offered_per_s,
            seconds=seconds,
            answered_per_s=len(latencies) / seconds,
            refused_per_s=self.refused / seconds,
            failed=self.failures.total(),
            failures=", ".join(f"{kind} x {count}" for kind, count in self.failures.most_common()),
            tokens_per_s=self.tokens / seconds,
            p50_s=_quantile(latencies, 0.50),
            p95_s=_quantile(latencies, 0.95),
            p99_s=_quantile(latencies, 0.99),
            retry_after_s=self.retry_after_s,
        )


async def offer(
    target: Target, traffic: Traffic, *, rate_per_s: float, seconds: float, seed: int = 0
) -> LoadPoint:
    """Requests at this mean rate for so long, at times drawn from a Poisson process."""
    client, tally = HttpClient(target), _Tally()
    loop = asyncio.get_running_loop()
    schedule = list(_arrivals(traffic, rate_per_s, seconds, seed))
    began_at = loop.time()
    under_way: set[asyncio.Task[None]] = set()

    async def ask(request: Request, arrived_at: float) -> None:
        try:
            answer = await client.post(request.path, request.body)
        except (OSError, EOFError, ValueError) as error:
            tally.failures[type(error).__name__] += 1
        else:
            tally.add(answer, arrived_at, loop.time())

    for after_s, request in schedule:
        await asyncio.sleep(began_at + after_s - loop.time())
        task = asyncio.create_task(ask(request, began_at + after_s))
        under_way.add(task)
        task.add_done_callback(under_way.discard)
    await _finish(under_way, tally)
    client.close()
    # Work that was still queued at the end is answered after it; counting the whole stretch
    # keeps a backlog from looking like throughput.
    return tally.point(rate_per_s, max(seconds, tally.last_answer_at - began_at))


async def saturate(
    target: Target, traffic: Traffic, *, clients: int, seconds: float, seed: int = 0
) -> LoadPoint:
    """As much as so many clients get who each ask again once answered, or after the wait that a
    refusal asks for: the capacity."""
    client, tally = HttpClient(target), _Tally()
    loop = asyncio.get_running_loop()
    began_at = loop.time()
    requests = traffic.requests(seed)

    async def ask_again_and_again() -> None:
        while (asked_at := loop.time()) < began_at + seconds:
            request = next(requests)
            answer = await client.post(request.path, request.body)
            tally.add(answer, asked_at, loop.time())
            await asyncio.sleep(float(answer.headers.get("retry-after", 0)))

    try:
        await asyncio.gather(*(ask_again_and_again() for _ in range(clients)))
    finally:
        client.close()
    return tally.point(0.0, max(seconds, tally.last_answer_at - began_at))


def _arrivals(
    traffic: Traffic, rate_per_s: float, seconds: float, seed: int
) -> Iterator[tuple[float, Request]]:
    """Made before the clock starts: making texts takes time that arrivals should not wait for."""
    rng, at = random.Random(seed), 0.0
    for request in traffic.requests(seed + 1):
        at += rng.expovariate(rate_per_s)
        if at >= seconds:
            return
        yield at, request


async def _finish(under_way: Iterable[asyncio.Task[None]], tally: _Tally) -> None:
    tasks = set(under_way)
    if not tasks:
        return
    _, late = await asyncio.wait(tasks, timeout=_GRACE_S)
    for task in late:
        task.cancel()
        tally.failures["unanswered"] += 1
    await asyncio.gather(*late, return_exceptions=True)


def _tokens(answer: HttpAnswer) -> int:
    # The vectors before it need not be parsed.
    _, _, usage = answer.body.rpartition(b'"usage":')
    counted, _ = _DECODER.raw_decode(usage.decode().lstrip())
    return int(counted["prompt_tokens"])


def _quantile(ordered: list[float], share: float) -> float:
    """The value that this share lies at or below; 0 where there are none."""
    if not ordered:
        return 0.0
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)]
