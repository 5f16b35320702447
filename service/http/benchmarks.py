"""POST, GET and DELETE /v1/benchmarks: this machine measured on demand."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import asdict, replace
from typing import Annotated, Any, Literal, TypeAlias

import orjson
from fastapi import APIRouter, Header, Query, Request, Response
from starlette.responses import StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from service.benchmarks.compare import compare
from service.benchmarks.documents import job_document, rows_as_csv, suite_document
from service.benchmarks.job import BenchmarkJob
from service.benchmarks.plot import plot_png
from service.benchmarks.suites import SUITES
from service.http.answers import BenchmarkAnswer, BenchmarkList, ComparisonAnswer, SuiteList
from service.http.dependencies import Engine, Jobs, ServerSettings
from service.http.json import JsonRoute, dump_list, json_response
from service.http.media_types import HTML, JSON, NDJSON, preferred, wants_events
from service.http.schemas import BenchmarkBody
from service.load.client import Target
from service.slow_callers import takes_within

router = APIRouter(route_class=JsonRoute, tags=["benchmarks"])

Format: TypeAlias = Literal["json", "csv", "png", "ndjson"]
Accept: TypeAlias = Annotated[str, Header(description="application/x-ndjson follows the run.")]

_TYPES: dict[str, Format] = {NDJSON: "ndjson", "text/csv": "csv", "image/png": "png"}
_OFFERS: dict[str, Format] = {JSON: "json", HTML: "json", **_TYPES}
_CREDENTIALS = ("authorization", "x-api-key")


@router.post(
    "/v1/benchmarks",
    response_model=BenchmarkAnswer,
    status_code=202,
    responses={202: {"content": {NDJSON: {}}}},
    summary="Start a benchmark",
)
async def start_benchmark(
    request: Request,
    body: BenchmarkBody,
    jobs: Jobs,
    engine: Engine,
    settings: ServerSettings,
    accept: Accept = "",
) -> Response:
    """Answers at once with an id; runs take turns, and requests for vectors go before them."""
    plan = body.plan(engine.resolve(body.model))
    job = await jobs.start(plan, _this_server(request))
    location = {"location": f"/v1/benchmarks/{job.id}"}
    if wants_events(accept):
        return _Followed(job, settings.request_timeout_s, 202, location)
    return json_response(job_document(job), 202, location)


@router.get("/v1/benchmarks", response_model=BenchmarkList, summary="List the benchmarks")
async def list_benchmarks(jobs: Jobs) -> Response:
    """The last hundred, newest first, those of earlier processes included."""
    found = await jobs.list()
    data = await dump_list(map(job_document, found))
    return json_response({"object": "list", "data": data})


@router.get("/v1/benchmarks/suites", response_model=SuiteList, summary="List the suites")
async def list_suites() -> Response:
    """What can be measured, and the columns of the rows."""
    suites = [suite_document(suite) for suite in SUITES.values()]
    return json_response({"object": "list", "data": suites})


@router.get(
    "/v1/benchmarks/compare", response_model=ComparisonAnswer, summary="Compare two benchmarks"
)
async def compare_benchmarks(
    jobs: Jobs,
    a: Annotated[str, Query(description="A run's id.")],
    b: Annotated[str, Query(description="Another's, of the same suite.")],
) -> Response:
    """Each figure of both runs, their ratio, and which is better."""
    found = compare(await jobs.get(a), await jobs.get(b))
    return json_response({"object": "benchmark_comparison", **asdict(found)})


@router.get(
    "/v1/benchmarks/{benchmark_id}",
    response_model=BenchmarkAnswer,
    summary="One benchmark and its rows so far",
    responses={200: {"content": {name: {} for name in _TYPES}}},
)
async def get_benchmark(
    benchmark_id: str,
    jobs: Jobs,
    settings: ServerSettings,
    format: Annotated[Format | None, Query(description="Instead of an Accept header.")] = None,
    accept: Accept = "",
) -> Response:
    """As JSON, as CSV, as a picture (PNG), or as a stream of JSON lines that ends with the run."""
    job = await jobs.get(benchmark_id)
    match format or _wanted(accept):
        case "csv":
            return Response(rows_as_csv(job), media_type="text/csv")
        case "png":
            return Response(await asyncio.to_thread(plot_png, job), media_type="image/png")
        case "ndjson":
            return _Followed(job, settings.request_timeout_s)
    return json_response(job_document(job))


@router.delete(
    "/v1/benchmarks/{benchmark_id}", response_model=BenchmarkAnswer, summary="Cancel a benchmark"
)
async def cancel_benchmark(benchmark_id: str, jobs: Jobs) -> Response:
    """Its rows so far are kept. A run that has ended stays as it is."""
    return json_response(job_document(await jobs.cancel(benchmark_id)))


def _this_server(request: Request) -> Target | None:
    """Where this server listens, for a load with the rights of who asked for it."""
    server: Target | None = request.app.state.server
    if server is None:
        return None
    headers = {name: request.headers[name] for name in _CREDENTIALS if name in request.headers}
    return replace(server, headers=headers)


def _wanted(accept: str) -> Format:
    return _OFFERS[preferred(accept, list(_OFFERS)) or JSON]


class _Followed(StreamingResponse):
    """A run as lines of JSON, each of which its reader has so many seconds to take."""

    def __init__(
        self,
        job: BenchmarkJob,
        within_s: float,
        status: int = 200,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(_lines(job), status, headers, media_type=NDJSON)
        self._within_s = within_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def in_time(message: Message) -> None:
            async with takes_within(self._within_s):
                await send(message)

        await super().__call__(scope, receive, in_time)


async def _lines(job: BenchmarkJob) -> AsyncIterator[bytes]:
    """The run, each row as it comes, and how the run is after it."""
    yield _line({"event": "benchmark", "benchmark": job_document(job) | {"rows": []}})
    done = 0
    async for rows in job.watch():
        for row in rows:
            done += 1
            yield _line({"event": "row", "row": dict(row), "done": done, "num_rows": job.num_rows})
        if not rows:
            yield _line({"event": "state", "state": job.state})
    yield _line({"event": "end", "benchmark": job_document(job)})


def _line(event: dict[str, Any]) -> bytes:
    return orjson.dumps(event, option=orjson.OPT_APPEND_NEWLINE)
