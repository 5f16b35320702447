"""What the device runs next: policy over plain data, with no device, no thread and no clock.

Short texts go first, packed into batches. Behind them wait three kinds of long work: sweeps, which
run a tile at a time; texts that cannot be swept; and calls (diagnoses, benchmarks). While short
work and long work both wait, long work is owed a stated share of the device's time, equally by
kind, and a kind gets its next unit as soon as it is owed as much as its last one took. When no
short work waits, the kind goes next that has had the least time. Within a kind, the job that is
due first goes first (see Job.due); jobs of its model ride along in their order as far as a batch
has room. So nothing starves.
"""

from __future__ import annotations

from dataclasses import dataclass

from engine.jobs import Job, Unit
from engine.lanes import Lane, SweepLane

FIRST_UNIT_S = 0.1
"""What a unit is taken to last before its kind has run at all."""


@dataclass(eq=False)
class _Behind:
    """One kind of long work, and what it has had of the device."""

    lane: Lane | SweepLane
    used_s: float = 0.0
    last_unit_s: float = FIRST_UNIT_S
    owed_s: float = 0.0

    @property
    def is_owed_a_unit(self) -> bool:
        return self.owed_s > 0 and self.owed_s >= self.last_unit_s


class Scheduler:
    """Admission and order. Not thread-safe: its owner holds a lock around every use."""

    def __init__(
        self,
        *,
        max_batch_tokens: int,
        max_batch_sequences: int,
        max_queue_tokens: int,
        max_queue_calls: int = 64,
        max_sweep_bytes: int = 1 << 62,
        long_share: float = 0.25,
    ) -> None:
        self.max_batch_tokens = max_batch_tokens
        self.max_queue_tokens = max_queue_tokens
        self.max_queue_calls = max_queue_calls
        self.long_share = long_share
        self._short = Lane(max_tokens=max_batch_tokens, max_sequences=max_batch_sequences)
        self._sweeps = SweepLane(max_bytes=max_sweep_bytes)
        self._long = Lane(max_tokens=max_batch_tokens, max_sequences=1)
        self._calls = Lane(max_tokens=0, max_sequences=1)
        self._lanes = (self._short, self._sweeps, self._long, self._calls)
        self._behind = [_Behind(lane) for lane in (self._sweeps, self._long, self._calls)]
        self._num_added = 0
        # What the kind that ran last had had by then: how far the kinds together have come.
        self._clock_s = 0.0

    @property
    def num_waiting(self) -> int:
        """Texts that have not begun."""
        return len(self._short) + len(self._long) + self._sweeps.num_waiting

    @property
    def num_waiting_calls(self) -> int:
        return len(self._calls)

    @property
    def waiting_tokens(self) -> int:
        """Tokens of the texts that have not begun."""
        return self._short.tokens + self._long.tokens + self._sweeps.waiting_tokens

    @property
    def is_empty(self) -> bool:
        return not any(len(lane) for lane in self._lanes)

    def can_add(self, tokens: int) -> bool:
        """Whether texts of so many tokens may wait too. An empty queue takes work of any size,
        or else work beyond the limit could never be done."""
        return self.waiting_tokens + tokens <= self.max_queue_tokens or not self.num_waiting

    def can_add_call(self) -> bool:
        return self.num_waiting_calls < self.max_queue_calls

    def add(self, job: Job) -> None:
        job.number = self._num_added
        self._num_added += 1
        lane = self._lane_of(job)
        if not len(lane):
            self._catch_up(lane)
        lane.add(job)

    def remove(self, job: Job) -> bool:
        """Forget a job that is done or whose caller left; False if it was not here. A sweep is
        here until it is removed, everything else until its unit is taken."""
        return self._lane_of(job).remove(job)

    def holds(self, job: Job) -> bool:
        """Whether a sweep is here, waiting or under way."""
        return job in self._sweeps

    def remove_all(self) -> list[Job]:
        """Forget everything that is here, and say what it was."""
        jobs = [job for lane in self._lanes for job in lane]
        for job in jobs:
            self.remove(job)
        return sorted(jobs, key=lambda job: job.number)

    def next_unit(self, now: float) -> Unit | None:
        """What runs next; None if nobody waits for anything. `finished` wants to hear of it."""
        while (choice := self._choose(now)) is not None:
            lane, short_waits = choice
            # Callers leave without our owner's lock: who waited for the choice may be gone by now.
            if jobs := lane.take(now):
                if lane is self._short:
                    return Unit(jobs, preempts=self._sweeps.has_begun)
                self._clock_s = max(self._clock_s, self._kind_of(lane).used_s)
                return Unit(jobs, displaces=short_waits)
        return None

    def _choose(self, now: float) -> tuple[Lane | SweepLane, bool] | None:
        """Whose turn it is, and whether short texts wait."""
        short_waits = self._short.has_live(now)
        behind = [kind for kind in self._behind if kind.lane.has_live(now)]
        if short_waits:
            behind = [kind for kind in behind if kind.is_owed_a_unit]
        if behind:
            # A tie goes to the kind named first.
            return min(behind, key=lambda kind: kind.used_s).lane, short_waits
        return (self._short, True) if short_waits else None

    def finished(self, unit: Unit, seconds: float) -> None:
        """The unit took the device for so long."""
        lane = self._lane_of(unit.jobs[0])
        if lane is self._short:
            self._owe(seconds * self.long_share / (1 - self.long_share))
            return
        kind = self._kind_of(lane)
        kind.used_s += seconds
        kind.last_unit_s = seconds
        # Time that nobody else wanted pays what is owed, but is not held against a kind later.
        kind.owed_s = kind.owed_s - seconds if unit.displaces else max(kind.owed_s - seconds, 0.0)

    def _owe(self, seconds: float) -> None:
        """To those who wait, in equal parts; the others have no claim."""
        waiting = [kind for kind in self._behind if len(kind.lane)]
        for kind in self._behind:
            kind.owed_s = kind.owed_s + seconds / len(waiting) if kind in waiting else 0.0

    def _lane_of(self, job: Job) -> Lane | SweepLane:
        if job.kind == "sweep_tile":
            return self._sweeps
        if job.kind != "batch":
            return self._calls
        return self._short if job.tokens <= self.max_batch_tokens else self._long

    def _kind_of(self, lane: Lane | SweepLane) -> _Behind:
        return next(kind for kind in self._behind if kind.lane is lane)

    def _catch_up(self, lane: Lane | SweepLane) -> None:
        """Who comes back after a pause has no claim to the time it did not ask for, whether or not
        somebody else waits just then."""
        if lane is not self._short:
            kind = self._kind_of(lane)
            kind.used_s = max(kind.used_s, self._clock_s)
