"""POST, GET and DELETE /v1/benchmarks: starts, lists, compares and cancels benchmarks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import asdict, replace
from typing import Annotated, Any, Literal, TypeAlias

import orjson
from fastapi import APIRouter, Depends, Header, Query, Request, Response
from starlette.responses import StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from service.addresses import Target
from service.benchmarks.job import BenchmarkJob
from service.benchmarks.report import compare, job_document, plot_png, rows_as_csv, suite_document
from service.benchmarks.suites import SUITES
from service.fairness import write_timeout
from service.http.dependencies import Engine, Jobs, ServerSettings
from service.http.json_request import JsonRoute
from service.http.json_response import dump_list, json_response
from service.http.media_types import HTML, JSON, NDJSON, preferred, wants_events
from service.http.query import query_checked, query_known
from service.http.schemas.benchmarks import BenchmarkBody
from service.http.schemas.responses.benchmarks import (
    BenchmarkAnswer,
    BenchmarkList,
    ComparisonAnswer,
    SuiteList,
)

router = APIRouter(
    route_class=JsonRoute,
    tags=["benchmarks"],
    dependencies=[Depends(query_checked), Depends(query_known)],
)

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
    """Answers at once with an id. One benchmark runs at a time; requests for vectors go first."""
    plan = body.plan(engine.resolve(body.model))
    job = await jobs.start(plan, _this_server(request))
    location = {"location": f"/v1/benchmarks/{job.id}"}
    if wants_events(accept):
        return _RunStream(job, settings.request_timeout_s, 202, location)
    return json_response(job_document(job), 202, location)


@router.get("/v1/benchmarks", response_model=BenchmarkList, summary="List the benchmarks")
async def list_benchmarks(jobs: Jobs) -> Response:
    """The last hundred, newest first, including those of earlier processes."""
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
    match format or _OFFERS[preferred(accept, list(_OFFERS)) or JSON]:
        case "csv":
            return Response(rows_as_csv(job), media_type="text/csv")
        case "png":
            return Response(await asyncio.to_thread(plot_png, job), media_type="image/png")
        case "ndjson":
            return _RunStream(job, settings.request_timeout_s)
    return json_response(job_document(job))


@router.delete(
    "/v1/benchmarks/{benchmark_id}", response_model=BenchmarkAnswer, summary="Cancel a benchmark"
)
async def cancel_benchmark(benchmark_id: str, jobs: Jobs) -> Response:
    """Its rows so far are kept. A run that has ended stays as it is."""
    return json_response(job_document(await jobs.cancel(benchmark_id)))


def _this_server(request: Request) -> Target | None:
    """Where this server listens, for a load that has its caller's rights."""
    server: Target | None = request.app.state.server
    if server is None:
        return None
    headers = {name: request.headers[name] for name in _CREDENTIALS if name in request.headers}
    return replace(server, headers=headers)


class _RunStream(StreamingResponse):
    """A run as lines of JSON. The caller must read each line within `timeout_s`.

    Unlike EventStream it follows work that goes on without it, and can have another status.
    """

    def __init__(
        self,
        job: BenchmarkJob,
        timeout_s: float,
        status: int = 200,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(_lines(job), status, headers, media_type=NDJSON)
        self._timeout_s = timeout_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_in_time(message: Message) -> None:
            async with write_timeout(self._timeout_s):
                await send(message)

        await super().__call__(scope, receive, send_in_time)


async def _lines(job: BenchmarkJob) -> AsyncIterator[bytes]:
    """The run's plan, each row as it is measured, each change of state, and the run at its end."""
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
