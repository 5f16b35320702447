"""What waits for the device, and what the device runs in one go: plain data."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from engine.observer import UnitKind
from engine.stretches import Stretches
from engine.types import Priority

PATIENCE_S: dict[Priority, float] = {"normal": 0.0, "background": 30.0}
"""How much later than it came a job may be passed by others, who come after it."""

SWEEP_PATIENCE = 1.0
"""The same for a sweep, besides: times what it takes alone. So a shorter text that comes during a
long one overtakes it, and the long one is passed for a bounded time only."""


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
    priority: Priority = "normal"
    num_bytes: int = 0  # of a sweep: what it holds from its first tile to its last
    seconds: float = 0.0  # of a sweep: what it takes alone, as far as is known
    on_event: Callable[[Any], None] | None = None  # called on the loop with what a sweep tells
    timer: asyncio.TimerHandle | None = None  # set by the bridge: answers at the deadline
    started_at: float | None = None  # set by the bridge, of a sweep: its first tile
    stretches: Stretches | None = None  # set by the bridge, of a sweep: the tiles so far
    number: int = field(default=-1, init=False)  # set by the scheduler: order of arrival

    def has_departed(self, now: float) -> bool:
        """Whether nobody waits for the result any more."""
        return self.future.done() or (self.deadline is not None and now >= self.deadline)

    @property
    def due(self) -> float:
        """When it would have to start: the order of service. It never changes, and those who come
        later are due later by and by, so nothing is passed for ever."""
        due = self.enqueued_at + PATIENCE_S[self.priority]
        if self.kind == "sweep_tile":
            due += SWEEP_PATIENCE * self.seconds
        return due if self.deadline is None else min(due, self.deadline - self.seconds)

    @property
    def order(self) -> tuple[float, int]:
        return (self.due, self.number)


@dataclass(frozen=True, slots=True)
class Unit:
    """What the device runs in one go: texts of one model, one tile of a text, or a call."""

    jobs: tuple[Job, ...]
    preempts: bool = False
    """Whether a sweep that has begun waits meanwhile."""
    displaces: bool = False
    """Whether short texts wait meanwhile."""

    @property
    def model(self) -> str:
        return self.jobs[0].model

    @property
    def kind(self) -> UnitKind:
        return self.jobs[0].kind

    @property
    def tokens(self) -> int:
        return sum(job.tokens for job in self.jobs)

    def halves(self) -> tuple[Unit, Unit]:
        """The same jobs in two units; there are two at least."""
        middle = len(self.jobs) // 2
        return Unit(self.jobs[:middle]), Unit(self.jobs[middle:])

    def singly(self) -> Iterator[Unit]:
        """The same jobs, each in a unit of its own."""
        return (Unit((job,)) for job in self.jobs)
