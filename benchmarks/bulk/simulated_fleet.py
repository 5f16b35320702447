"""A fleet of workers that reads a corpus in parts, simulated: slow workers, workers that are taken
away, and the least time that any schedule could take.

A worker that is free takes the next part. One that is taken away loses the part that it reads,
which the next free worker begins anew; the worker itself comes back later. Parts are cut and
ordered as `lln embed` does it.

    python -m benchmarks.bulk.simulated_fleet

writes what docs/scaling.md tells of it to benchmarks/results/ranks/schedule.json.
"""

from __future__ import annotations

import argparse
import heapq
import json
import sys
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks.store import ROOT
from service.bulk.balance import cut, largest_first
from service.bulk.parts import PART_ROWS, PART_TOKENS

AHEAD_OF_EACH = 4
"""Parts read ahead for each worker, among which the largest goes first."""

RESULTS = ROOT / "benchmarks" / "results" / "ranks" / "schedule.json"


@dataclass(frozen=True, kw_only=True)
class Fleet:
    """Workers that read one unit of cost a second, unless they are slow."""

    num_workers: int
    slow_share: float = 0.0
    slow_speed: float = 1.0
    seconds_between_losses: float = float("inf")
    """The mean time for which a worker stays until it is taken away."""
    seconds_away: float = 0.0


class Simulated(NamedTuple):
    makespan_s: float
    bound_s: float
    """No schedule is faster: the workers that are there need as long for all of the work, or the
    fastest of them as long for the largest part."""
    repeated_share: float
    """Work that was lost and done again, as a share of all work."""

    @property
    def over_bound(self) -> float:
        return self.makespan_s / self.bound_s


class _Event(NamedTuple):
    at: float
    worker: int
    part: float | None  # what the worker had, if it was taken away meanwhile


@dataclass
class _Away:
    """When workers were away."""

    speeds: list[float] = field(default_factory=list)
    starts: list[float] = field(default_factory=list)
    ends: list[float] = field(default_factory=list)

    def add(self, speed: float, start: float, seconds: float) -> None:
        self.speeds.append(speed)
        self.starts.append(start)
        self.ends.append(start + seconds)


def simulate(parts: Iterable[float], fleet: Fleet, *, seed: int = 0) -> Simulated:
    """The fleet reads parts of these costs, which are handed out in this order."""
    rng = np.random.default_rng(seed)
    is_slow = rng.random(fleet.num_workers) < fleet.slow_share
    speeds = np.where(is_slow, fleet.slow_speed, 1.0).tolist()
    mean_stay_s = min(fleet.seconds_between_losses, 1e30)
    losses = rng.exponential(mean_stay_s, fleet.num_workers).tolist()
    waiting, returned, away = iter(parts), deque[float](), _Away()
    events = [_Event(0.0, worker, None) for worker in range(fleet.num_workers)]
    idle: list[int] = []
    total = largest = repeated = makespan = 0.0
    while events:
        now, worker, lost = heapq.heappop(events)
        if lost is not None:
            returned.append(lost)
            away.add(speeds[worker], now, fleet.seconds_away)
            back_at = now + fleet.seconds_away
            losses[worker] = back_at + rng.exponential(mean_stay_s)
            heapq.heappush(events, _Event(back_at, worker, None))
            if not idle:
                continue
            worker = idle.pop()
        part = returned.popleft() if returned else next(waiting, None)
        if part is None:
            idle.append(worker)
            continue
        while losses[worker] < now:  # taken away and replaced while it had nothing to do
            losses[worker] += rng.exponential(mean_stay_s)
        ends_at = now + part / speeds[worker]
        if ends_at > losses[worker]:
            repeated += (losses[worker] - now) * speeds[worker]
            heapq.heappush(events, _Event(losses[worker], worker, part))
            continue
        total, largest, makespan = total + part, max(largest, part), max(makespan, ends_at)
        heapq.heappush(events, _Event(ends_at, worker, None))
    bound = max(_capacity_bound(total, np.array(speeds), away), largest / max(speeds))
    return Simulated(makespan, bound, repeated / total)


def _capacity_bound(total: float, speeds: NDArray[np.float64], away: _Away) -> float:
    """When the workers that are there have had time for all of the work."""
    lost, starts, ends = (np.array(part) for part in (away.speeds, away.starts, away.ends))

    def done_by(seconds: float) -> float:
        gone = np.clip(np.minimum(ends, seconds) - starts, 0.0, None)
        return float(speeds.sum() * seconds - (lost * gone).sum())

    low, high = 0.0, total / float(speeds.min())
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if done_by(middle) < total else (low, middle)
    return high


def skewed_tokens(
    number: int, *, usual: float, longest: int, long_share: float = 0.01, seed: int = 0
) -> list[int]:
    """Tokens of documents: one in a hundred is long, and these have half of all tokens, as far as
    the longest text allows."""
    rng = np.random.default_rng(seed)
    is_long = rng.random(number) < long_share
    means = np.where(is_long, usual * (1 - long_share) / long_share, usual)
    drawn = (rng.gamma(2.0, 0.5, number) * means).astype(int)
    tokens: list[int] = np.clip(drawn, 1, longest).tolist()
    return tokens


def scheduled_parts(
    tokens: Iterable[int], num_workers: int, *, part_tokens: int = PART_TOKENS
) -> list[int]:
    """Costs of the parts of a bulk job, in the order in which its workers take them."""
    parts = cut(tokens, int, max_cost=part_tokens, max_items=PART_ROWS)
    ahead = AHEAD_OF_EACH * num_workers
    costs = (sum(part) for part in parts)
    return list(largest_first(costs, int, max_items=ahead, max_cost=ahead * part_tokens))


def main() -> int:
    rows = [
        _measured(num_workers, longest_parts, documents, slow_speed)
        for num_workers in (512, 4_096)
        for longest_parts, documents in ((5, 100), (5, 400), (21, 400))
        for slow_speed in (1.0, 0.5, 0.25)
    ]
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    RESULTS.write_text(json.dumps({"rows": rows}, indent=1) + "\n", encoding="utf-8")
    print(RESULTS)
    return 0


def _measured(
    num_workers: int, longest_parts: int, documents: int, slow_speed: float
) -> dict[str, float]:
    """One fleet. A worker stays for the time of 50 parts, and is away for that of 2."""
    tokens = skewed_tokens(
        documents * num_workers, usual=PART_TOKENS / 2, longest=longest_parts * PART_TOKENS
    )
    parts = scheduled_parts(tokens, num_workers)
    fleet = Fleet(
        num_workers=num_workers,
        slow_share=0.05,
        slow_speed=slow_speed,
        seconds_between_losses=50 * PART_TOKENS,
        seconds_away=2 * PART_TOKENS,
    )
    found = simulate(parts, fleet)
    return {
        "workers": num_workers,
        "parts_each": sum(parts) / num_workers / PART_TOKENS,
        "largest_part": longest_parts,
        "slow_speed": slow_speed,
        "over_bound": found.over_bound,
        "repeated_share": found.repeated_share,
    }


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    sys.exit(main())
