"""A scheduler with small limits, a clock that tests turn, and futures for what joins it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from engine.scheduling.request import Entry, Request, Unit, UnitKind
from engine.scheduling.scheduler import Scheduler
from engine.types import Priority

MAX_BATCH_TOKENS = 100
MAX_BATCH_SEQUENCES = 4
MAX_QUEUE_TOKENS = 1_000
MAX_QUEUE_CALLS = 3
MAX_SWEEP_BYTES = 1_000
LONG_SHARE = 0.25


def new_scheduler() -> Scheduler:
    return Scheduler(
        max_batch_tokens=MAX_BATCH_TOKENS,
        max_batch_sequences=MAX_BATCH_SEQUENCES,
        max_queue_tokens=MAX_QUEUE_TOKENS,
        max_queue_calls=MAX_QUEUE_CALLS,
        max_sweep_bytes=MAX_SWEEP_BYTES,
        long_share=LONG_SHARE,
    )


@dataclass
class Line:
    """A scheduler, and futures for what joins it."""

    scheduler: Scheduler = field(default_factory=new_scheduler)
    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.new_event_loop)
    now: float = 0.0

    def add(
        self,
        tokens: int,
        *,
        model: str = "a",
        kind: UnitKind = "batch",
        timeout_s: float | None = None,
        priority: Priority = "normal",
        num_bytes: int = 0,
        seconds: float = 0.0,
        after_s: float = 0.0,
        needs_ranks: bool = False,
    ) -> Entry:
        request = Request(
            model=model,
            tokens=tokens,
            payload=None,
            kind=kind,
            priority=priority,
            num_bytes=num_bytes,
            seconds=seconds,
            after_s=after_s,
            needs_ranks=needs_ranks,
        )
        entry = Entry(
            request=request,
            future=self.loop.create_future(),
            enqueued_at=self.now,
            deadline=None if timeout_s is None else self.now + timeout_s,
        )
        self.scheduler.add(entry)
        return entry

    def call(self) -> Entry:
        return self.add(0, model="", kind="diagnosis")

    def sweep(
        self, *, num_bytes: int = 100, seconds: float = 10.0, needs_ranks: bool = False
    ) -> Entry:
        return self.add(
            5_000,
            kind="sweep_tile",
            num_bytes=num_bytes,
            seconds=seconds,
            needs_ranks=needs_ranks,
        )

    def unit(self, seconds: float = 1.0) -> Unit | None:
        """The next unit, which takes so long."""
        unit = self.scheduler.next_unit(self.now)
        if unit is not None:
            self.now += seconds
            self.scheduler.record(unit, seconds)
        return unit

    def serve(self, seconds: float = 1.0) -> list[Entry]:
        unit = self.unit(seconds)
        return [] if unit is None else list(unit.entries)

    def serve_all(self, seconds: float = 0.1) -> list[list[Entry]]:
        return list(iter(lambda: self.serve(seconds), []))
