"""Benchmark runs started over the network: one at a time, kept in memory, found by id."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from engine.engine import AsyncEngine
from engine.errors import LLNError, QueueFull, ResourceNotFound
from engine.types import BenchmarkResult, BenchmarkRow
from service.errors import as_lln_error

log = logging.getLogger(__name__)

JobState: TypeAlias = Literal["queued", "running", "done", "failed"]

MAX_WAITING = 8
MAX_KEPT = 100


@dataclass(frozen=True, kw_only=True)
class BenchmarkPlan:
    """What to measure."""

    suite: str
    lengths: tuple[int, ...]
    attentions: tuple[str, ...]
    repeats: int
    model: str | None


@dataclass(eq=False, kw_only=True)
class BenchmarkJob:
    """One run. The jobs' worker writes it, everyone may read it."""

    id: str
    plan: BenchmarkPlan
    created_at: float
    state: JobState = "queued"
    started_at: float | None = None
    finished_at: float | None = None
    rows: list[BenchmarkRow] = field(default_factory=list)  # grows while the run lasts
    result: BenchmarkResult | None = None
    error: LLNError | None = None


class BenchmarkJobs:
    """Runs benchmarks one after the other and remembers the last ones."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine
        self._jobs: dict[str, BenchmarkJob] = {}
        self._turn = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, plan: BenchmarkPlan) -> BenchmarkJob:
        """Queues a run and returns at once."""
        self._refuse_when_full()
        job = BenchmarkJob(id=f"bench-{uuid.uuid4().hex[:12]}", plan=plan, created_at=time.time())
        self._jobs[job.id] = job
        self._forget_oldest()
        task = asyncio.create_task(self._run(job))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return job

    def get(self, job_id: str) -> BenchmarkJob:
        job = self._jobs.get(job_id)
        if job is None:
            raise ResourceNotFound(f"no benchmark has the id {job_id!r}", param="id", actual=job_id)
        return job

    def list(self) -> Sequence[BenchmarkJob]:
        """All that are remembered, newest first."""
        return list(reversed(self._jobs.values()))

    async def stop(self) -> None:
        """Gives up what waits or runs."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _refuse_when_full(self) -> None:
        waiting = sum(job.state == "queued" for job in self._jobs.values())
        if waiting >= MAX_WAITING:
            raise QueueFull(
                f"{waiting} benchmarks wait already, and no more than {MAX_WAITING} may",
                code="too_many_benchmarks",
                limit=MAX_WAITING,
                actual=waiting,
                retry_after_s=60,
            )

    def _forget_oldest(self) -> None:
        finished = [job.id for job in self._jobs.values() if job.state in ("done", "failed")]
        for job_id in finished[: max(0, len(self._jobs) - MAX_KEPT)]:
            del self._jobs[job_id]

    async def _run(self, job: BenchmarkJob) -> None:
        async with self._turn:
            job.state, job.started_at = "running", time.time()
            try:
                job.result = await self._measure(job)
                job.state = "done"
            except Exception as failure:
                job.error, job.state = as_lln_error(failure), "failed"
                if job.error is not failure:
                    log.exception("benchmark failed", extra={"fields": {"benchmark": job.id}})
            finally:
                job.finished_at = time.time()

    async def _measure(self, job: BenchmarkJob) -> BenchmarkResult:
        return await self._engine.benchmark(
            lengths=job.plan.lengths,
            attentions=job.plan.attentions,
            repeats=job.plan.repeats,
            model=job.plan.model,
            progress=job.rows.append,
        )
