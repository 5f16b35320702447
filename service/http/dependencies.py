"""Parameters that FastAPI passes to handlers: the server's parts and the caller's deadline."""

from __future__ import annotations

from typing import Annotated, TypeAlias

from fastapi import Depends, Header, Request
from pydantic import WithJsonSchema

from engine.async_engine import AsyncEngine
from service.batches.folder import BatchFolder
from service.batches.runner import Batches
from service.benchmarks.jobs import BenchmarkJobs
from service.claims import ClaimsJob
from service.deadlines import effective_timeout_s, parse_timeout_header
from service.http.middleware.observe import RequestRecord
from service.index.serving import IndexSearch
from service.metrics import Metrics
from service.settings import Settings


async def _engine(request: Request) -> AsyncEngine:
    engine: AsyncEngine = request.app.state.engine
    return engine


async def _settings(request: Request) -> Settings:
    settings: Settings = request.app.state.settings
    return settings


async def _metrics(request: Request) -> Metrics:
    metrics: Metrics = request.app.state.metrics
    return metrics


async def _jobs(request: Request) -> BenchmarkJobs:
    jobs: BenchmarkJobs = request.app.state.jobs
    return jobs


async def _claims(request: Request) -> ClaimsJob:
    claims: ClaimsJob = request.app.state.claims
    return claims


async def _batches(request: Request) -> Batches:
    folder: BatchFolder = request.app.state.batches
    return folder.batches


async def _search(request: Request) -> IndexSearch:
    search: IndexSearch = request.app.state.search
    return search


async def _record(request: Request) -> RequestRecord:
    record: RequestRecord = request.state.record
    return record


async def _timeout_s(
    settings: Annotated[Settings, Depends(_settings)],
    x_request_timeout_ms: Annotated[
        str | None,
        Header(description="Give up after this many milliseconds."),
        WithJsonSchema({"type": "string", "pattern": "^[1-9][0-9]{0,11}$"}),
    ] = None,
) -> float:
    return effective_timeout_s(
        parse_timeout_header(x_request_timeout_ms), settings.request_timeout_s
    )


Engine: TypeAlias = Annotated[AsyncEngine, Depends(_engine)]
ServerSettings: TypeAlias = Annotated[Settings, Depends(_settings)]
ServerMetrics: TypeAlias = Annotated[Metrics, Depends(_metrics)]
Jobs: TypeAlias = Annotated[BenchmarkJobs, Depends(_jobs)]
BatchesOfServer: TypeAlias = Annotated[Batches, Depends(_batches)]
Claims: TypeAlias = Annotated[ClaimsJob, Depends(_claims)]
Search: TypeAlias = Annotated[IndexSearch, Depends(_search)]
Record: TypeAlias = Annotated[RequestRecord, Depends(_record)]
TimeoutS: TypeAlias = Annotated[float, Depends(_timeout_s)]
