"""Replicas in simulated time: the engine's scheduler and the router's ledger, without a device.

    python -m benchmarks.replicas.simulated

Requests arrive at random times. A batch takes so long for itself and for each token, a tile its own
time, and nothing else takes any: no network, no proxy, no other work on the machine. So this shows
what a policy is worth, and `python -m benchmarks replicas` what a running system keeps of it.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from statistics import median
from typing import Any, cast

from benchmarks.replicas.policies import (
    BY_REQUESTS,
    BY_TOKENS,
    POLICIES,
    ROUND_ROBIN,
    SHORT_LENGTHS,
)
from engine.scheduling.request import Entry, Request, Unit
from engine.scheduling.scheduler import Scheduler
from service.replicas.ledger import TILED_FROM, Ledger, Report
from service.replicas.price import Price

TOKENS_PER_S = 4_800.0
BATCH_S = 0.004
TILE_S = 0.012
"""About those of one core of the machine that this was written on."""

REPORT_S = 0.5
LOAD = 0.7
SEEDS, RUN_S = 5, 200.0
MIXES: Mapping[str, Mapping[int, float]] = {
    "paragraphs of 512": {**SHORT_LENGTHS, 512: 12.0},
    "pages of 1,000": {**SHORT_LENGTHS, 1_000: 6.0},
    "pages, and documents of 8,192": {**SHORT_LENGTHS, 1_000: 6.0, 8_192: 1.0},
    "documents of 8,192": {**SHORT_LENGTHS, 8_192: 1.0},
}
_EPOCH = 1e6  # a report at 0 would mean none


@dataclass
class _Answer:
    """In place of an asyncio future, which wants a loop."""

    is_done: bool = False

    def done(self) -> bool:
        return self.is_done


@dataclass(frozen=True)
class _Text:
    name: str
    tokens: int
    arrived_at: float


def _scheduler() -> Scheduler:
    return Scheduler(max_batch_tokens=8_192, max_batch_sequences=512, max_queue_tokens=1 << 40)


@dataclass
class _Replica:
    name: str
    scheduler: Scheduler = field(default_factory=_scheduler)
    running: Unit | None = None
    num_open: int = 0


class Simulation:
    """One run of one policy. The same seed gives the same arrivals to all."""

    def __init__(self, policy: str, weights: Mapping[int, float], num_replicas: int = 2) -> None:
        self._policy = policy
        self._weights = weights
        self._replicas = {str(at): _Replica(str(at)) for at in range(num_replicas)}
        self._now = 0.0
        self._turns = count()
        self._numbers = count()
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._ledger = Ledger(lambda: _EPOCH + self._now)
        self._seconds: dict[int, list[float]] = {length: [] for length in weights}

    def run(self, seconds: float, seed: int) -> Mapping[int, list[float]]:
        """The latencies of the texts of each length."""
        self._report(2 * seconds)
        for at, length in self._arrivals(seconds, seed):
            self._at(at, partial(self._arrive, length))
        while self._events:
            self._now, _, happen = heapq.heappop(self._events)
            happen()
        return self._seconds

    def _at(self, time: float, happen: Callable[[], None]) -> None:
        heapq.heappush(self._events, (time, next(self._numbers), happen))

    def _arrivals(self, seconds: float, seed: int) -> Iterator[tuple[float, int]]:
        rng, at = random.Random(seed), 0.0
        lengths, weights = list(self._weights), list(self._weights.values())
        alone_s = sum((BATCH_S + n / TOKENS_PER_S) * weight for n, weight in self._weights.items())
        rate = LOAD * len(self._replicas) * sum(weights) / alone_s
        while (at := at + rng.expovariate(rate)) < seconds:
            yield at, rng.choices(lengths, weights)[0]

    def _report(self, until: float) -> None:
        reports = {}
        for name, replica in self._replicas.items():
            short, long = replica.scheduler.outstanding(replica.running)
            reports[name] = Report(name=name, short=short, long=long, at=_EPOCH + self._now)
        self._ledger.update(reports)
        if self._now < until:
            self._at(self._now + REPORT_S, partial(self._report, until))

    def _route(self, price: Price) -> str:
        names, turn = list(self._replicas), next(self._turns)
        in_turn = [names[(turn + at) % len(names)] for at in range(len(names))]
        if self._policy == ROUND_ROBIN:
            return in_turn[0]
        if self._policy == BY_REQUESTS:
            return min(in_turn, key=lambda name: self._replicas[name].num_open)
        return self._ledger.order(price)[0]

    def _arrive(self, tokens: int) -> None:
        price, text = Price(tokens=tokens), _Text(str(next(self._numbers)), tokens, self._now)
        replica = self._replicas[self._route(price)]
        self._ledger.send(text.name, replica.name, price)
        replica.num_open += 1
        request = Request(
            model="default",
            payload=text,
            tokens=tokens,
            kind="sweep_tile" if tokens >= TILED_FROM else "batch",
            seconds=tokens / TOKENS_PER_S,
        )
        answer = cast("Any", _Answer())
        replica.scheduler.add(Entry(request=request, future=answer, enqueued_at=self._now))
        self._start(replica)

    def _start(self, replica: _Replica) -> None:
        if replica.running is not None:
            return
        unit = replica.running = replica.scheduler.next_unit(self._now)
        if unit is not None:
            taken_s = TILE_S if unit.is_tile else BATCH_S + unit.tokens / TOKENS_PER_S
            self._at(self._now + taken_s, partial(self._finish, replica, unit, taken_s))

    def _finish(self, replica: _Replica, unit: Unit, taken_s: float) -> None:
        replica.running = None
        replica.scheduler.record(unit, taken_s)
        for entry in unit.entries:
            entry.busy_s += taken_s
            if unit.is_tile and entry.busy_s < entry.request.seconds:
                continue
            replica.scheduler.remove(entry)
            entry.future.is_done = True  # type: ignore[attr-defined]
            text: _Text = entry.request.payload
            self._ledger.answered(text.name, replica.name)
            replica.num_open -= 1
            self._seconds[text.tokens].append(self._now - text.arrived_at)
        self._start(replica)


@dataclass(frozen=True)
class Outcome:
    short_p99_s: float
    long_p50_s: float


def outcome(policy: str, weights: Mapping[int, float], *, seconds: float, seed: int) -> Outcome:
    taken = Simulation(policy, weights).run(seconds, seed)
    short = [one for length, values in taken.items() if length in SHORT_LENGTHS for one in values]
    return Outcome(_quantile(short, 0.99), _quantile(taken[max(taken)], 0.5))


def _quantile(values: list[float], share: float) -> float:
    return sorted(values)[int(share * (len(values) - 1))]


def main() -> None:
    print("| mix | policy | p99 of short texts | over that by tokens | p50 of the longest |")
    print("| --- | --- | --- | --- | --- |")
    for name, weights in MIXES.items():
        runs = {
            policy: [outcome(policy, weights, seconds=RUN_S, seed=seed) for seed in range(SEEDS)]
            for policy in POLICIES
        }
        for policy, found in runs.items():
            ratios = [
                one.short_p99_s / own.short_p99_s
                for one, own in zip(found, runs[BY_TOKENS], strict=True)
            ]
            short, long = (
                median(getattr(one, what) for one in found)
                for what in ("short_p99_s", "long_p50_s")
            )
            spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
            print(f"| {name} | {policy} | {short * 1e3:.0f} ms | {spread} | {long * 1e3:.0f} ms |")


if __name__ == "__main__":
    main()
