"""The queue of benchmark runs: one runs at a time, and finished runs stay available by id."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import aclosing
from typing import Self

from engine.async_engine import AsyncEngine
from engine.errors import LLNError, QueueFull, ResourceNotFound, shown
from service.addresses import Target
from service.benchmarks.history import History
from service.benchmarks.job import BenchmarkJob, JobState, describe_machine, new_id, replica_of
from service.benchmarks.suites import SUITES, Bench, BenchmarkPlan, Row
from service.errors import NotAvailable, StorageFailure, as_lln_error, error_fields
from service.metrics import BenchmarkMetrics

log = logging.getLogger(__name__)

MAX_WAITING = 8
MAX_LISTED = 100
MAX_STORED = 1000


class BenchmarkJobs:
    """Runs benchmarks one after the other. On the device they count as long work."""

    def __init__(
        self, engine: AsyncEngine, history: History, metrics: BenchmarkMetrics, *, replica: str = ""
    ) -> None:
        """`replica` is this server's name among those that answer the same address."""
        self._engine = engine
        self._history = history
        self._metrics = metrics
        self._replica = replica
        # Runs that are queued or running, and those that could not be saved.
        self._current: dict[str, BenchmarkJob] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._running = asyncio.Lock()

    async def start(self, plan: BenchmarkPlan, server: Target | None = None) -> BenchmarkJob:
        """Queues a run and returns. The suite `serving` sends its load to `server`."""
        self._refuse_when_full()
        job = BenchmarkJob(
            id=new_id(self._replica),
            plan=plan,
            num_rows=SUITES[plan.suite].num_rows(plan),
            machine=describe_machine(self._engine.resolve(plan.model)),
        )
        self._current[job.id] = job
        try:
            # A run that cannot be saved does not start: it could not be found later.
            await asyncio.to_thread(self._history.save, job)
        except BaseException:
            del self._current[job.id]
            raise
        task = asyncio.create_task(self._run(job, Bench(engine=self._engine, server=server)))
        self._tasks[job.id] = task
        task.add_done_callback(lambda _: self._tasks.pop(job.id, None))
        return job

    async def get(self, job_id: str) -> BenchmarkJob:
        job = self._current.get(job_id) or await asyncio.to_thread(self._history.get, job_id)
        if job is None:
            raise self._not_found(job_id)
        return job

    def _not_found(self, job_id: str) -> ResourceNotFound:
        owner = replica_of(job_id)
        if owner in ("", self._replica):
            return ResourceNotFound(
                f"no benchmark has the id {shown(job_id)!r}", param="id", actual=job_id
            )
        return ResourceNotFound(
            f"{job_id} belongs to the replica {owner}, and this is {self._replica}, which does "
            f"not have its runs; ask {owner}",
            code="benchmark_elsewhere",
            param="id",
            actual=job_id,
        )

    async def list(self) -> Sequence[BenchmarkJob]:
        """Returns the latest runs, newest first."""
        stored = await asyncio.to_thread(self._history.newest, MAX_LISTED)
        jobs = {job.id: job for job in stored} | self._current
        return sorted(jobs.values(), key=lambda job: -job.created_at)[:MAX_LISTED]

    async def cancel(self, job_id: str) -> BenchmarkJob:
        """Cancels a run and keeps its rows. A run that has ended does not change."""
        job = await self.get(job_id)
        if job.is_elsewhere:
            raise NotAvailable(
                f"{job_id} runs on another server that has the same history; cancel it there",
                code="benchmark_elsewhere",
                param="id",
                actual=job_id,
            )
        task = self._tasks.get(job_id)
        if task is not None:
            self._end(job, task, "cancelled")
            await asyncio.wait({task})
        return job

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *failure: object) -> None:
        """Interrupts all runs."""
        tasks = dict(self._tasks)
        for job_id, task in tasks.items():
            if job_id in self._current:
                self._end(self._current[job_id], task, "interrupted")
        await asyncio.gather(*tasks.values(), return_exceptions=True)
        await asyncio.to_thread(self._history.close)

    def _end(self, job: BenchmarkJob, task: asyncio.Task[None], state: JobState) -> None:
        """Cancels an active run. One that has ended may still be being saved; leave it."""
        if job.is_active:
            job.finish(state)
            task.cancel()

    def _refuse_when_full(self) -> None:
        waiting = sum(job.state == "queued" for job in self._current.values())
        if waiting >= MAX_WAITING:
            raise QueueFull(
                f"{waiting} benchmarks are queued, and the limit is {MAX_WAITING}",
                code="too_many_benchmarks",
                limit=MAX_WAITING,
                actual=waiting,
                retry_after_s=60,
            )

    async def _run(self, job: BenchmarkJob, bench: Bench) -> None:
        try:
            async with self._running:
                job.start()
                with self._metrics.running(job.plan.suite):
                    await self._measure(job, bench)
                job.finish("done")
        except asyncio.CancelledError:
            if job.is_active:
                job.finish("interrupted")
        except Exception as failure:
            error = as_lln_error(failure)
            if not isinstance(failure, LLNError):
                log.exception("benchmark failed", extra={"fields": {"benchmark": job.id}})
            job.finish("failed", error_fields(error))
        finally:
            self._metrics.finished(suite=job.plan.suite, state=job.state)
            if await self._save(job):
                del self._current[job.id]

    async def _measure(self, job: BenchmarkJob, bench: Bench) -> None:
        suite = SUITES[job.plan.suite]
        async with aclosing(suite.rows(bench, job.plan)) as rows:
            async for row in rows:
                job.add(row)
                self._count(job.plan.suite, row)
                await self._save(job)

    def _count(self, suite: str, row: Row) -> None:
        match row:
            case {"attention": str(kind), "tokens": int(tokens), "tokens_per_s": float(speed)}:
                self._metrics.measured(
                    suite=suite, attention=kind, tokens=tokens, tokens_per_s=speed
                )

    async def _save(self, job: BenchmarkJob) -> bool:
        """Saves the job and returns whether that worked. A full disk does not stop the run."""
        try:
            await asyncio.to_thread(self._history.save, job)
            if not job.is_active:
                await asyncio.to_thread(self._history.delete_all_but, MAX_STORED)
        except StorageFailure as failure:
            log.error(failure.message, extra={"fields": {"benchmark": job.id}})
            return False
        return True
