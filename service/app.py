"""The application: routes, middleware, and one lifespan for HTTP, gRPC and the engine."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

from fastapi import APIRouter, FastAPI
from fastapi.routing import APIRoute
from starlette.datastructures import State
from starlette.middleware.cors import CORSMiddleware

from engine.async_engine import AsyncEngine
from engine.model.embedding_model import EmbeddingModel, load_models
from engine.ranks.launcher import RankLauncher
from service.batches.folder import BatchFolder
from service.batches.run import BatchLimits
from service.batches.runner import Batches
from service.batches.usage import Amount
from service.benchmarks.history import History
from service.benchmarks.jobs import BenchmarkJobs
from service.benchmarks.suites import SUITES
from service.body_budget import BodyBudget
from service.claims import ClaimsJob
from service.deadlines import Draining
from service.grpc.server import grpc_server
from service.http.batch_requests import BatchRequests
from service.http.dialects.table import dialects_named
from service.http.errors import install_error_handlers
from service.http.json_request import JsonParser
from service.http.middleware.access import UNGUARDED, AccessMiddleware, SecurityHeadersMiddleware
from service.http.middleware.body import BodyMiddleware
from service.http.middleware.head import HeadMiddleware
from service.http.middleware.observe import ObserveMiddleware
from service.http.routes import (
    attention,
    batches,
    benchmarks,
    claims,
    documents,
    embeddings,
    files,
    health,
    models,
    pages,
    ranking,
    search,
    tei,
    tei_tokens,
)
from service.http.schemas.responses.base import ErrorAnswer
from service.index.serving import IndexSearch
from service.metrics import BatchApiMetrics, Metrics
from service.security import Origins, RequestLimit
from service.settings import Settings
from service.version import version_of

log = logging.getLogger(__name__)

_ROUTERS = tuple(
    routes.router
    for routes in (
        embeddings,
        documents,
        attention,
        claims,
        benchmarks,
        files,
        batches,
        models,
        ranking,
        tei,
        tei_tokens,
        health,
        search,
        pages,
    )
)

_EXPOSED_HEADERS = (
    "location",
    "retry-after",
    "server-timing",
    "x-compute-tokens",
    "x-inference-time",
    "x-lln-document",
    "x-lln-dropped-tokens",
    "x-queue-time",
    "x-request-id",
)
"""Headers of answers that CORS would hide from pages of other origins."""


def create_app(
    settings: Settings, engine: AsyncEngine | None = None, metrics: Metrics | None = None
) -> FastAPI:
    """The HTTP application. Its lifespan runs gRPC and the engine, which it loads if not given."""
    app = FastAPI(
        title="LLN",
        version=version_of("lln"),
        description="Embeddings of texts of any length, and diagnostics of their attention.",
        lifespan=_lifespan,
        openapi_url=None,  # served by routes/pages.py
        telemetry={"tracing": False, "metrics": False, "logs": False},  # ObserveMiddleware has it
        redirect_slashes=False,  # a redirect would go to the host that the request names
        responses={"4XX": {"model": ErrorAnswer}, "5XX": {"model": ErrorAnswer}},
    )
    app.state.settings = settings
    app.state.engine = engine
    app.state.metrics = metrics or Metrics()
    app.state.keys = settings.open_keys()
    app.state.dialects = dialects_named(settings.dialects)
    app.state.unguarded = _unguarded(settings) | app.state.dialects.open_paths
    app.state.request_limit = RequestLimit(settings.max_open_requests, app.state.metrics)
    app.state.body_budget = BodyBudget(
        settings.max_open_body_bytes,
        settings.body_timeout_s,
        app.state.metrics,
        # In both lanes together half of the requests that may be open: the rest is for others.
        max_waiting=max(1, settings.max_open_requests // 4),
    )
    app.state.json_parser = JsonParser()
    app.state.draining = Draining(settings.engine.drain_timeout_s)
    app.state.server = None  # the address HTTP listens on, set by service.server
    app.state.grpc_address = ""  # what gRPC listens on, while it does
    routers = (*_ROUTERS, *(dialect.router for dialect in app.state.dialects.dialects))
    for router in routers:
        app.include_router(router)
    routes = _routes(routers)
    install_error_handlers(app, routes)
    _add_middleware(app, settings, routes)
    return app


def load_engine(settings: Settings, metrics: Metrics) -> AsyncEngine:
    return engine_of(load_models(settings.models, config=settings.engine), settings, metrics)


def engine_of(
    models: Sequence[EmbeddingModel],
    settings: Settings,
    metrics: Metrics,
    launcher: RankLauncher | None = None,
) -> AsyncEngine:
    """`launcher` starts the other ranks, where this process does not start them itself."""
    return AsyncEngine(
        models,
        config=settings.engine,
        observer=metrics,
        aliases=settings.model_aliases,
        launcher=launcher,
    )


def batch_folder(settings: Settings, engine: AsyncEngine, metrics: BatchApiMetrics) -> BatchFolder:
    limits = BatchLimits(
        file_bytes=settings.max_file_bytes,
        stored=Amount(settings.max_stored_bytes, settings.max_stored_files),
        stored_batches=settings.max_stored_batches,
        batch_requests=settings.max_batch_requests,
        open_batches=settings.max_open_batches,
        line_bytes=settings.max_body_bytes,
        kept_s=settings.batch_retention_s or None,
    )
    folder = Path(settings.batch_folder).expanduser() if settings.batch_folder else None
    answer = BatchRequests(engine).answer
    return BatchFolder(folder, lambda store: Batches(store, answer, limits, metrics))


def _add_middleware(app: FastAPI, settings: Settings, routes: Sequence[APIRoute]) -> None:
    """A request passes the last one added first."""
    state, methods = app.state, _methods(routes)
    state.metrics.start_methods("http", methods)
    app.add_middleware(
        BodyMiddleware,
        max_body_bytes=settings.max_body_bytes,
        body_timeout_s=settings.body_timeout_s,
        budget=state.body_budget,
    )
    app.add_middleware(
        AccessMiddleware,
        origins=Origins(settings.cors_origins),
        keys=state.keys,
        limit=state.request_limit,
        unguarded=state.unguarded,
    )
    app.add_middleware(ObserveMiddleware, metrics=state.metrics, methods=methods)
    app.add_middleware(SecurityHeadersMiddleware)
    app.add_middleware(HeadMiddleware, routes=routes)
    if settings.cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=settings.cors_origins,
            allow_methods=["GET", "HEAD", "POST", "PATCH", "DELETE"],
            # OpenAI's browser client sends a dozen headers of its own, more with each release.
            allow_headers=["*"],
            expose_headers=_EXPOSED_HEADERS,
        )


def _unguarded(settings: Settings) -> frozenset[str]:
    metrics = () if settings.metrics_need_key else ("/metrics",)
    return UNGUARDED.union(pages.PATHS, metrics)


def _routes(routers: Iterable[APIRouter]) -> list[APIRoute]:
    every = (route for router in routers for route in router.routes)
    return [route for route in every if isinstance(route, APIRoute)]


def _methods(routes: Iterable[APIRoute]) -> list[str]:
    """Every verb with its route's template: the method labels of metrics and log lines."""
    return [f"{method} {route.path}" for route in routes for method in sorted(route.methods or ())]


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Starts the parts of the server, and stops them in the opposite order."""
    state = app.state
    settings: Settings = state.settings
    if state.engine is None:
        state.engine = await asyncio.to_thread(load_engine, settings, state.metrics)
    async with state.engine as engine:
        _start_metrics(state.metrics, engine, settings, state.draining)
        history = await asyncio.to_thread(History, settings.benchmark_history)
        state.jobs = BenchmarkJobs(
            engine, history, state.metrics.benchmarks, replica=settings.replica_name
        )
        state.claims = ClaimsJob(engine)
        state.batches = batch_folder(settings, engine, state.metrics.batch_api)
        state.search = await asyncio.to_thread(IndexSearch, settings.index, engine)
        state.started_at = int(time.time())
        rpc = _grpc_server(engine, settings, state)
        # Benchmarks end when draining begins: callers that follow one would delay the end.
        async with (
            aclosing(state.batches),
            _until_draining(state.draining, state.jobs),
            _until_draining(state.draining, rpc) as state.grpc_address,
            _until_draining(state.draining, state.batches),
        ):
            yield
        await state.claims.stop()
        await state.search.close()
        state.json_parser.close()
        await engine.stop(state.draining.deadline)


def _start_metrics(
    metrics: Metrics, engine: AsyncEngine, settings: Settings, draining: Draining
) -> None:
    metrics.start_models(engine.models.values())
    metrics.benchmarks.start_suites(SUITES)
    metrics.start_readiness(lambda: engine.ready and not draining.announced)
    device_type = next(iter(engine.models.values())).device.partition(":")[0]
    metrics.start_limits(
        queue_tokens=settings.engine.max_queue_tokens,
        batch_tokens=settings.engine.batch_tokens_on(device_type),
    )


def _grpc_server(
    engine: AsyncEngine, settings: Settings, state: State
) -> AbstractAsyncContextManager[str]:
    """gRPC, with the keys and limits that HTTP has too."""
    return grpc_server(
        engine,
        settings,
        state.metrics,
        state.jobs,
        keys=state.keys,
        limit=state.request_limit,
        budget=state.body_budget,
        draining=state.draining,
        http=state.server,
    )


@asynccontextmanager
async def _until_draining(
    draining: Draining, context: AbstractAsyncContextManager[Any]
) -> AsyncIterator[Any]:
    """Runs a context in a task of its own. It begins to close when draining begins, without
    waiting for the other protocol to finish."""
    entered = asyncio.get_running_loop().create_future()

    async def run() -> None:
        async with context as value:
            entered.set_result(value)
            await draining.wait()

    task = asyncio.create_task(run())
    await asyncio.wait({task, entered}, return_when=asyncio.FIRST_COMPLETED)
    if not entered.done():
        await task  # raises the reason it did not start
    try:
        yield entered.result()
    finally:
        draining.begin()
        await task
