"""A load generator for embeddings over HTTP, in a process of its own.

    echo '{"host": "127.0.0.1", "port": 8000, "lengths": [16, 64], "seconds": 5,
           "shares": [0.5, 1.0]}' | python -m service.benchmarks.load

It reads a plan as JSON from standard input, because a command line would show the plan's API key,
and writes a JSON line for each result. It measures the server's capacity, then offers shares of it.

The load is an open loop: requests arrive at random times, independently of the answers, as from
many users. A latency counts from the planned arrival, so it includes any delay in sending.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

from service.addresses import Target
from service.benchmarks.load_client import HttpAnswer, HttpClient

ANSWERED, REFUSED = 200, 429

_CLIENTS = 32
_GRACE_S = 30.0
"""How long to wait for the last answers."""

_DECODER = json.JSONDecoder()

# Each word is one token of BERT's vocabulary. Results use the tokens that the server counted.
_TEXT = """
time year people way day man thing woman life child world school state family student group country
problem hand part place case week company system program question work government number night
point home water room mother area money story fact month lot right study book eye job word business
issue side kind head house service friend father power hour game line end member law car city
community name president team minute idea body information back
"""
_WORDS = _TEXT.split()
_SPECIAL_TOKENS = 2


class Request(NamedTuple):
    path: str
    body: bytes


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """A mix of text lengths in tokens, with their weights. Each request has one text."""

    name: str
    weights: Mapping[int, float]
    model: str = "default"

    @classmethod
    def of_lengths(cls, lengths: Sequence[int], model: str) -> Traffic:
        return cls(name="even", weights=dict.fromkeys(lengths, 1.0), model=model)

    def requests(self, seed: int) -> Iterator[Request]:
        """Yields requests without end. The same seed gives the same requests."""
        for text in self.texts(seed):
            fields = {"input": text, "encoding_format": "base64", "model": self.model}
            yield Request("/v1/embeddings", json.dumps(fields).encode())

    def texts(self, seed: int) -> Iterator[str]:
        rng = random.Random(seed)
        lengths, weights = list(self.weights), list(self.weights.values())
        while True:
            (length,) = rng.choices(lengths, weights)
            yield " ".join(rng.choices(_WORDS, k=max(1, length - _SPECIAL_TOKENS)))


PROFILES: Mapping[str, Traffic] = {
    traffic.name: traffic
    for traffic in (
        Traffic(name="short", weights={8: 1, 16: 2, 32: 2, 64: 1}),
        Traffic(name="mixed", weights={16: 40, 64: 30, 256: 20, 512: 8, 4096: 2}),
        Traffic(name="long", weights={2048: 4, 8192: 2, 16_384: 1}),
    )
}


@dataclass(frozen=True, kw_only=True)
class LoadPoint:
    """The result of one offered load. Latencies are those of answered requests."""

    offered_per_s: float
    seconds: float
    """From the first arrival to the last answer."""
    answered_per_s: float
    refused_per_s: float
    failed: int
    failures: str
    """The failures by kind, as in "500 x 3, ConnectionResetError x 1"; empty if there were none."""
    tokens_per_s: float
    p50_s: float
    p95_s: float
    p99_s: float
    retry_after_s: float
    """The longest Retry-After of a refusal."""


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
    """Offers requests at a mean rate, with the arrival times of a Poisson process."""
    client, tally = HttpClient(target), _Tally()
    loop = asyncio.get_running_loop()
    schedule = list(_arrivals(traffic, rate_per_s, seconds, seed))
    began_at = loop.time()
    in_progress: set[asyncio.Task[None]] = set()

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
        in_progress.add(task)
        task.add_done_callback(in_progress.discard)
    await _finish(in_progress, tally)
    client.close()
    # Queued requests are answered after the end. Counting until the last answer keeps a backlog
    # from looking like throughput.
    return tally.point(rate_per_s, max(seconds, tally.last_answer_at - began_at))


async def saturate(
    target: Target, traffic: Traffic, *, clients: int, seconds: float, seed: int = 0
) -> LoadPoint:
    """Measures the capacity: clients that each send their next request when the last is answered.

    A refused client waits for the Retry-After of the refusal first.
    """
    client, tally = HttpClient(target), _Tally()
    loop = asyncio.get_running_loop()
    began_at = loop.time()
    requests = traffic.requests(seed)

    async def send_repeatedly() -> None:
        while (asked_at := loop.time()) < began_at + seconds:
            request = next(requests)
            answer = await client.post(request.path, request.body)
            tally.add(answer, asked_at, loop.time())
            await asyncio.sleep(float(answer.headers.get("retry-after", 0)))

    try:
        await asyncio.gather(*(send_repeatedly() for _ in range(clients)))
    finally:
        client.close()
    return tally.point(0.0, max(seconds, tally.last_answer_at - began_at))


def _arrivals(
    traffic: Traffic, rate_per_s: float, seconds: float, seed: int
) -> Iterator[tuple[float, Request]]:
    """Yields arrival times and requests. Runs before the clock starts: it takes time."""
    rng, at = random.Random(seed), 0.0
    for request in traffic.requests(seed + 1):
        at += rng.expovariate(rate_per_s)
        if at >= seconds:
            return
        yield at, request


async def _finish(in_progress: Iterable[asyncio.Task[None]], tally: _Tally) -> None:
    tasks = set(in_progress)
    if not tasks:
        return
    _, late = await asyncio.wait(tasks, timeout=_GRACE_S)
    for task in late:
        task.cancel()
        tally.failures["unanswered"] += 1
    await asyncio.gather(*late, return_exceptions=True)


def _tokens(answer: HttpAnswer) -> int:
    # Parses only the usage, not the vectors before it.
    _, _, usage = answer.body.rpartition(b'"usage":')
    counted, _ = _DECODER.raw_decode(usage.decode().lstrip())
    return int(counted["prompt_tokens"])


def _quantile(ordered: list[float], share: float) -> float:
    """Returns the quantile of sorted values, or 0 if there are none."""
    if not ordered:
        return 0.0
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)]


async def main(plan: Mapping[str, Any]) -> None:
    target = Target(
        host=plan["host"],
        port=plan["port"],
        headers=plan.get("headers", {}),
        tls=plan.get("tls", False),
        verify=plan.get("verify", True),
        ca_file=plan.get("ca_file"),
    )
    traffic = Traffic.of_lengths(plan["lengths"], plan.get("model", "default"))
    seconds = plan["seconds"]
    capacity = await saturate(target, traffic, clients=_CLIENTS, seconds=seconds)
    if not capacity.answered_per_s:
        sys.exit("the server answered none of the requests")
    for seed, share in enumerate(plan["shares"]):
        rate = share * capacity.answered_per_s
        point = await offer(target, traffic, rate_per_s=rate, seconds=seconds, seed=seed)
        print(json.dumps({"share": share, **asdict(point)}), flush=True)


if __name__ == "__main__":
    asyncio.run(main(json.load(sys.stdin)))
