"""Benchmark jobs: how a run ends, and what is saved of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from threading import Event

import pytest

from engine.async_engine import AsyncEngine
from service.benchmarks import suites
from service.benchmarks.history import History
from service.benchmarks.job import BenchmarkJob
from service.benchmarks.jobs import BenchmarkJobs
from service.benchmarks.plan import checked_plan
from service.benchmarks.suites import BenchmarkPlan
from service.errors import NotAvailable
from service.metrics import Metrics


class SlowHistory(History):
    """A slow disk when a finished run is saved."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.is_asked, self.may_write = Event(), Event()

    def save(self, job: BenchmarkJob) -> None:
        if job.state == "done":
            self.is_asked.set()
            assert self.may_write.wait(30)
        super().save(job)


def test_a_load_generator_that_is_killed_is_told() -> None:
    async def run() -> None:
        pipe = asyncio.subprocess.PIPE
        load = await asyncio.create_subprocess_exec(
            *("sh", "-c", "kill -9 $$"), stdin=pipe, stdout=pipe, stderr=pipe
        )
        with pytest.raises(NotAvailable, match="it ended with -9"):
            async for _ in suites._rows(load, b"{}"):
                pass

    asyncio.run(run())


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "history.sqlite")


@asynccontextmanager
async def jobs_with(history: History) -> AsyncIterator[tuple[BenchmarkJobs, BenchmarkPlan]]:
    """With a plan that finishes at once."""
    async with AsyncEngine.load(["default"]) as engine:
        plan = checked_plan(engine.resolve(None), lengths=[16], attentions=["softmax"], repeats=1)
        async with BenchmarkJobs(engine, history, Metrics().benchmarks) as jobs:
            yield jobs, plan


def test_a_finished_run_cannot_be_cancelled_while_it_is_saved(path: str) -> None:
    async def cancelled() -> BenchmarkJob:
        history = SlowHistory(path)
        async with jobs_with(history) as (jobs, plan):
            job = await jobs.start(plan)
            await asyncio.to_thread(history.is_asked.wait, 30)
            cancelling = asyncio.create_task(jobs.cancel(job.id))
            await asyncio.sleep(0)
            history.may_write.set()
            found = await cancelling
            assert job.id not in jobs._current
            return found

    found = asyncio.run(cancelled())
    assert (found.state, len(found.rows)) == ("done", 1)
    assert state_on_disk(path, found.id) == "done"


def test_stopping_waits_for_a_finished_run(path: str) -> None:
    async def stopped() -> str:
        history = SlowHistory(path)
        async with jobs_with(history) as (jobs, plan):
            job = await jobs.start(plan)
            await asyncio.to_thread(history.is_asked.wait, 30)
            asyncio.get_running_loop().call_later(0.05, history.may_write.set)
        return job.id

    assert state_on_disk(path, asyncio.run(stopped())) == "done"


def test_a_run_cancelled_twice_at_once_is_removed(path: str) -> None:
    async def cancelled() -> str:
        async with jobs_with(History(path)) as (jobs, plan):
            job = await jobs.start(replace(plan, lengths=(4096,), repeats=20))
            twice = await asyncio.gather(jobs.cancel(job.id), jobs.cancel(job.id))
            assert [one.state for one in twice] == ["cancelled", "cancelled"]
            assert job.id not in jobs._current
        return job.id

    assert state_on_disk(path, asyncio.run(cancelled())) == "cancelled"


def state_on_disk(path: str, job_id: str) -> str:
    found = History(path).get(job_id)
    assert found is not None
    return found.state
