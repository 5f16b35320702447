"""One run of a benchmark, and how those who watch it hear of its rows."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from service.benchmarks.suite import BenchmarkPlan, Row
from service.errors import ErrorFields

JobState: TypeAlias = Literal["queued", "running", "done", "failed", "cancelled", "interrupted"]
ACTIVE: tuple[JobState, ...] = ("queued", "running")


@dataclass(eq=False, kw_only=True)
class BenchmarkJob:
    """The jobs' worker writes it, everyone may read it."""

    plan: BenchmarkPlan
    num_rows: int
    """How many rows there will be."""
    machine: Mapping[str, str]
    id: str = field(default_factory=lambda: f"bench-{uuid.uuid4().hex[:12]}")
    state: JobState = "queued"
    created_at: float = field(default_factory=time.time)
    started_at: float | None = None
    finished_at: float | None = None
    rows: list[Row] = field(default_factory=list)  # grows while the run lasts
    error: ErrorFields | None = None
    _changed: asyncio.Event = field(default_factory=asyncio.Event, repr=False)

    @property
    def is_active(self) -> bool:
        return self.state in ACTIVE

    def start(self) -> None:
        self.state, self.started_at = "running", time.time()
        self._tell()

    def add(self, row: Row) -> None:
        self.rows.append(row)
        self._tell()

    def finish(self, state: JobState, error: ErrorFields | None = None) -> None:
        self.state, self.error, self.finished_at = state, error, time.time()
        self._tell()

    async def watch(self) -> AsyncIterator[tuple[Row, ...]]:
        """The rows so far, then those that come, as they come; ends with the run.

        Empty tuples tell that the run has started or ended."""
        seen = 0
        while True:
            changed, active = self._changed, self.is_active
            rows = tuple(self.rows[seen:])
            seen += len(rows)
            yield rows
            if not active:
                return
            await changed.wait()

    def _tell(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
