"""Where jobs wait, in the order in which they are due."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator

from engine.jobs import Job


class Line:
    """Jobs by when they are due. Most come and go at the ends, where that costs next to nothing."""

    def __init__(self) -> None:
        self._jobs: list[Job] = []

    def __len__(self) -> int:
        return len(self._jobs)

    def __iter__(self) -> Iterator[Job]:
        return iter(self._jobs)

    def add(self, job: Job) -> None:
        insort(self._jobs, job, key=_order)

    def remove(self, job: Job) -> bool:
        """Whether the job was still here."""
        at = bisect_left(self._jobs, job.order, key=_order)
        if at == len(self._jobs) or self._jobs[at] is not job:
            return False
        del self._jobs[at]
        return True

    def live(self, now: float) -> Iterator[Job]:
        """Those whose callers still wait. Departed jobs stay until whoever answers removes them."""
        return (job for job in self._jobs if not job.has_departed(now))

    def first_live(self, now: float) -> Job | None:
        return next(self.live(now), None)


class Lane:
    """Jobs for units of several jobs, kept by model since a unit has one model only."""

    def __init__(self, *, max_tokens: int, max_sequences: int) -> None:
        self.tokens = 0
        self._max_tokens = max_tokens
        self._max_sequences = max_sequences
        self._lines: dict[str, Line] = {}

    def __len__(self) -> int:
        return sum(map(len, self._lines.values()))

    def __iter__(self) -> Iterator[Job]:
        return (job for line in self._lines.values() for job in line)

    def add(self, job: Job) -> None:
        self._lines.setdefault(job.model, Line()).add(job)
        self.tokens += job.tokens

    def remove(self, job: Job) -> bool:
        """Whether the job was still here."""
        line = self._lines.get(job.model)
        if line is None or not line.remove(job):
            return False
        self.tokens -= job.tokens
        if not line:
            del self._lines[job.model]
        return True

    def has_live(self, now: float) -> bool:
        return any(line.first_live(now) for line in self._lines.values())

    def take(self, now: float) -> tuple[Job, ...]:
        """The job due first and those of its model that fit beside it; () if nobody waits."""
        heads = [head for line in self._lines.values() if (head := line.first_live(now))]
        if not heads:
            return ()
        first = min(heads, key=_order)
        jobs = tuple(self._fitting(self._lines[first.model].live(now)))
        for job in jobs:
            self.remove(job)
        return jobs

    def _fitting(self, jobs: Iterator[Job]) -> Iterator[Job]:
        """The first job, whatever its size, and the next ones until one does not fit."""
        room = self._max_tokens
        for position, job in enumerate(jobs):
            if position and (position == self._max_sequences or job.tokens > room):
                return
            room -= job.tokens
            yield job


class SweepLane:
    """Texts that take many units, one tile after the other, and hold memory from first to last.

    The one due first has the next tile. A text begins only when its memory fits beside those that
    have begun, and none that is due later begins before it.
    """

    def __init__(self, *, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._waiting = Line()
        self._begun = Line()

    def __len__(self) -> int:
        return len(self._waiting) + len(self._begun)

    def __iter__(self) -> Iterator[Job]:
        yield from self._waiting
        yield from self._begun

    def __contains__(self, job: Job) -> bool:
        return any(job is other for other in self)

    @property
    def num_waiting(self) -> int:
        """Texts that have not begun."""
        return len(self._waiting)

    @property
    def waiting_tokens(self) -> int:
        return sum(job.tokens for job in self._waiting)

    @property
    def has_begun(self) -> bool:
        """Whether some text is under way."""
        return len(self._begun) > 0

    @property
    def held_bytes(self) -> int:
        return sum(job.num_bytes for job in self._begun)

    def add(self, job: Job) -> None:
        self._waiting.add(job)

    def remove(self, job: Job) -> bool:
        """Whether the job was still here, waiting or under way."""
        return self._waiting.remove(job) or self._begun.remove(job)

    def has_live(self, now: float) -> bool:
        """Whether a tile could run now."""
        return self._next(now) is not None

    def take(self, now: float) -> tuple[Job, ...]:
        """Whose tile is next. The job stays here until it is removed."""
        job = self._next(now)
        if job is None:
            return ()
        if self._waiting.remove(job):
            self._begun.add(job)
        return (job,)

    def _next(self, now: float) -> Job | None:
        begun, waiting = self._begun.first_live(now), self._waiting.first_live(now)
        if waiting is not None and not self._has_room_for(waiting):
            waiting = None
        return min((job for job in (begun, waiting) if job is not None), key=_order, default=None)

    def _has_room_for(self, job: Job) -> bool:
        """Alone, a text may try whatever its size."""
        return not self._begun or self.held_bytes + job.num_bytes <= self.max_bytes


def _order(job: Job) -> tuple[float, int]:
    return job.order
