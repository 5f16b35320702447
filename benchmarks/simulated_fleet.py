"""A fleet of workers that reads a corpus in parts, simulated: slow workers, workers that are taken
away, and the least time that any schedule could take.

A worker that is free takes the next part. One that is taken away loses the part that it reads,
which the next free worker begins anew; the worker itself comes back later.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


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


def skewed_costs(
    number: int, *, seed: int = 0, long_share: float = 0.01, usual: float = 500.0
) -> Iterator[float]:
    """Tokens of documents: one in a hundred is long, and these have half of all tokens."""
    rng = np.random.default_rng(seed)
    is_long = rng.random(number) < long_share
    means = np.where(is_long, usual * (1 - long_share) / long_share, usual)
    yield from (rng.gamma(2.0, 0.5, number) * means).tolist()
