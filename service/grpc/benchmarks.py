"""lln.v1.Benchmarks: starts, follows, lists and cancels benchmark runs."""

from __future__ import annotations

from functools import partial

from engine.async_engine import AsyncEngine
from service.addresses import Target
from service.benchmarks.job import BenchmarkJob, replica_of
from service.benchmarks.jobs import BenchmarkJobs
from service.benchmarks.plan import checked_plan
from service.benchmarks.suites import Row
from service.grpc.context import Context, write
from service.grpc.requests import model_name
from service.pb.lln.v1 import benchmarks_pb2 as pb
from service.settings import Settings


class BenchmarksServicer:
    def __init__(
        self,
        engine: AsyncEngine,
        settings: Settings,
        jobs: BenchmarkJobs,
        server: Target | None,
    ) -> None:
        self._engine = engine
        self._settings = settings
        self._jobs = jobs
        self._server = server

    async def Run(self, request: pb.RunBenchmarkRequest, context: Context) -> None:
        plan = checked_plan(
            self._engine.resolve(model_name(request)),
            suite=request.suite if request.HasField("suite") else None,
            lengths=list(request.lengths) or None,
            attentions=list(request.attentions) or None,
            dtypes=list(request.dtypes) or None,
            repeats=request.repeats if request.HasField("repeats") else None,
            seconds=request.seconds if request.HasField("seconds") else None,
            training=request.training if request.HasField("training") else None,
        )
        job = await self._jobs.start(plan, self._server)
        send = partial(write, context, within_s=self._settings.request_timeout_s)
        await send(_event(job, 0, benchmark=benchmark_message(job)))
        done = 0
        async for rows in job.watch():
            for row in rows:
                done += 1
                await send(_event(job, done, row=_row_message(row)))
        await send(_event(job, done, benchmark=benchmark_message(job)))

    async def Get(self, request: pb.GetBenchmarkRequest, context: Context) -> pb.Benchmark:
        return benchmark_message(await self._jobs.get(request.id))

    async def List(
        self, request: pb.ListBenchmarksRequest, context: Context
    ) -> pb.ListBenchmarksResponse:
        jobs = await self._jobs.list()
        return pb.ListBenchmarksResponse(benchmarks=map(benchmark_message, jobs))

    async def Cancel(self, request: pb.CancelBenchmarkRequest, context: Context) -> pb.Benchmark:
        return benchmark_message(await self._jobs.cancel(request.id))


def _event(
    job: BenchmarkJob,
    done: int,
    *,
    benchmark: pb.Benchmark | None = None,
    row: pb.BenchmarkRow | None = None,
) -> pb.BenchmarkEvent:
    return pb.BenchmarkEvent(benchmark=benchmark, row=row, done=done, num_rows=job.num_rows)


def benchmark_message(job: BenchmarkJob) -> pb.Benchmark:
    message = pb.Benchmark(
        id=job.id,
        replica=replica_of(job.id),
        state=job.state,
        suite=job.plan.suite,
        model=job.plan.model,
        lengths=job.plan.lengths,
        attentions=job.plan.attentions,
        dtypes=job.plan.dtypes,
        repeats=job.plan.repeats,
        seconds=job.plan.seconds,
        training=job.plan.training,
        created_at=job.created_at,
        started_at=job.started_at,
        finished_at=job.finished_at,
        num_rows=job.num_rows,
        rows=map(_row_message, job.rows),
        machine=job.machine,
    )
    if job.error is not None:
        message.error_code = str(job.error["code"])
        message.error_message = str(job.error["message"])
    return message


def _row_message(row: Row) -> pb.BenchmarkRow:
    return pb.BenchmarkRow(
        labels={name: value for name, value in row.items() if isinstance(value, str)},
        figures={name: value for name, value in row.items() if not isinstance(value, str)},
    )
