"""What the device runs next: policy over plain data, with no device, no thread and no clock.

Texts wait in two lanes, those that fit a packed batch and longer ones, which the device takes in
turn while both wait. A third lane holds calls (diagnoses, benchmarks), which need the device for
themselves: they run when no text waits, or when so many units went past them that they would
otherwise starve. Within a lane the oldest job always goes next, and jobs of its model ride along
in their order as far as the batch has room. So each turn of a lane shortens the line ahead of
every job in it, and nothing starves.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from engine.observer import Unit as UnitKind


@dataclass(eq=False, kw_only=True, slots=True)
class Job:
    """One text, or one call, and the future that its caller awaits."""

    model: str
    tokens: int
    payload: Any  # what the runner takes; of a call, a function of no arguments
    future: asyncio.Future[Any]
    enqueued_at: float
    deadline: float | None = None
    kind: UnitKind = "batch"
    timer: asyncio.TimerHandle | None = None  # set by the bridge: answers at the deadline
    number: int = field(default=-1, init=False)  # set by the scheduler: order of arrival

    def has_departed(self, now: float) -> bool:
        """Whether nobody waits for the result any more."""
        return self.future.done() or (self.deadline is not None and now >= self.deadline)


@dataclass(frozen=True, slots=True)
class Unit:
    """What the device runs in one go: jobs of one model, or a single call."""

    jobs: tuple[Job, ...]

    @property
    def model(self) -> str:
        return self.jobs[0].model

    @property
    def kind(self) -> UnitKind:
        return self.jobs[0].kind

    @property
    def tokens(self) -> int:
        return sum(job.tokens for job in self.jobs)

    def singly(self) -> Iterator[Unit]:
        """The same jobs, each in a unit of its own."""
        return (Unit((job,)) for job in self.jobs)


class Lane:
    """Jobs in order of arrival, kept by model since a unit has one model only.

    Ordered dictionaries, because callers leave from the middle as often as work leaves the front.
    """

    def __init__(self, *, max_tokens: int, max_sequences: int) -> None:
        self.tokens = 0
        self._max_tokens = max_tokens
        self._max_sequences = max_sequences
        self._queues: dict[str, OrderedDict[int, Job]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._queues.values()))

    def __iter__(self) -> Iterator[Job]:
        return (job for queue in self._queues.values() for job in queue.values())

    def add(self, job: Job) -> None:
        self._queues.setdefault(job.model, OrderedDict())[job.number] = job
        self.tokens += job.tokens

    def remove(self, job: Job) -> bool:
        """Whether the job was still here."""
        queue = self._queues.get(job.model, OrderedDict())
        if queue.pop(job.number, None) is None:
            return False
        self.tokens -= job.tokens
        if not queue:
            del self._queues[job.model]
        return True

    def take(self, now: float) -> tuple[Job, ...]:
        """The oldest job and those of its model that fit beside it; () if nobody waits.

        Departed jobs are passed over and stay: whoever answers them removes them.
        """
        heads = [head for model in self._queues if (head := next(self._live(model, now), None))]
        if not heads:
            return ()
        oldest = min(heads, key=lambda job: job.number)
        jobs = tuple(self._fitting(self._live(oldest.model, now)))
        for job in jobs:
            self.remove(job)
        return jobs

    def _live(self, model: str, now: float) -> Iterator[Job]:
        return (job for job in self._queues[model].values() if not job.has_departed(now))

    def _fitting(self, jobs: Iterator[Job]) -> Iterator[Job]:
        """The first job, whatever its size, and the next ones until one does not fit."""
        room = self._max_tokens
        for position, job in enumerate(jobs):
            if position and (position == self._max_sequences or job.tokens > room):
                return
            room -= job.tokens
            yield job


class Scheduler:
    """Admission and order. Not thread-safe: its owner holds a lock around every use."""

    def __init__(
        self,
        *,
        max_batch_tokens: int,
        max_batch_sequences: int,
        max_queue_tokens: int,
        max_queue_calls: int = 64,
        max_units_before_call: int = 16,
    ) -> None:
        self.max_batch_tokens = max_batch_tokens
        self.max_queue_tokens = max_queue_tokens
        self.max_queue_calls = max_queue_calls
        self.max_units_before_call = max_units_before_call
        self._short = Lane(max_tokens=max_batch_tokens, max_sequences=max_batch_sequences)
        self._long = Lane(max_tokens=max_batch_tokens, max_sequences=1)
        self._calls = Lane(max_tokens=0, max_sequences=1)
        self._text_lanes = (self._short, self._long)  # the one whose turn it is comes first
        self._units_past_call = 0
        self._num_added = 0

    @property
    def num_waiting(self) -> int:
        """Texts that wait."""
        return len(self._short) + len(self._long)

    @property
    def num_waiting_calls(self) -> int:
        return len(self._calls)

    @property
    def waiting_tokens(self) -> int:
        """Tokens of the texts that wait."""
        return self._short.tokens + self._long.tokens

    @property
    def is_empty(self) -> bool:
        return not (self.num_waiting or self.num_waiting_calls)

    def can_add(self, tokens: int) -> bool:
        """Whether texts of so many tokens may wait too. An empty queue takes work of any size,
        or else work beyond the limit could never be done."""
        return self.waiting_tokens + tokens <= self.max_queue_tokens or not self.num_waiting

    def can_add_call(self) -> bool:
        return self.num_waiting_calls < self.max_queue_calls

    def add(self, job: Job) -> None:
        job.number = self._num_added
        self._num_added += 1
        self._lane_of(job).add(job)

    def remove(self, job: Job) -> bool:
        """Forget a job whose caller left; False if it no longer waited."""
        return self._lane_of(job).remove(job)

    def remove_all(self) -> list[Job]:
        """Forget everything that waits, and say what it was."""
        jobs = [job for lane in (*self._text_lanes, self._calls) for job in lane]
        for job in jobs:
            self.remove(job)
        return sorted(jobs, key=lambda job: job.number)

    def next_unit(self, now: float) -> Unit | None:
        """Take what runs next out of the queue; None if nobody waits for anything."""
        for lane in self._lanes_in_turn():
            if jobs := lane.take(now):
                self._end_turn(lane)
                return Unit(jobs)
        return None

    def _lane_of(self, job: Job) -> Lane:
        if job.kind != "batch":
            return self._calls
        return self._short if job.tokens <= self.max_batch_tokens else self._long

    def _lanes_in_turn(self) -> tuple[Lane, ...]:
        if self._units_past_call >= self.max_units_before_call:
            return (self._calls, *self._text_lanes)
        return (*self._text_lanes, self._calls)

    def _end_turn(self, lane: Lane) -> None:
        if lane is self._calls or not self._calls:
            self._units_past_call = 0
        else:
            self._units_past_call += 1
        if lane is self._text_lanes[0]:
            self._text_lanes = (self._text_lanes[1], lane)
