"""The server put together: one application, and one lifespan for both of its protocols."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from fastapi import FastAPI
from fastapi.routing import APIRoute
from starlette.middleware.cors import CORSMiddleware

from engine.engine import AsyncEngine
from service.api_keys import ApiKeys
from service.benchmarks.history import History
from service.benchmarks.jobs import BenchmarkJobs
from service.benchmarks.suites import SUITES
from service.claims import ClaimsBook
from service.draining import Draining
from service.grpc.server import grpc_server
from service.http import (
    attention_map,
    benchmarks,
    claims,
    diagnostics,
    docs,
    documents,
    embeddings,
    health,
    models,
    page,
    plan,
    structure,
    tei,
    tokenize,
)
from service.http.access import UNGUARDED, Access
from service.http.answers import ErrorAnswer
from service.http.big_json import BigJson
from service.http.errors import install_error_handlers
from service.http.headers import SecurityHeaders
from service.http.incoming import Incoming
from service.http.observe import Observe
from service.http.origins import Origins
from service.metrics import Metrics
from service.permits import Permits
from service.settings import Settings
from service.version import version_of

_ROUTERS = tuple(
    room.router
    for room in (
        embeddings,
        documents,
        diagnostics,
        attention_map,
        structure,
        claims,
        benchmarks,
        plan,
        tokenize,
        models,
        tei,
        health,
        docs,
        page,
    )
)

_TOLD_IN_HEADERS = (
    "location",
    "retry-after",
    "server-timing",
    "x-compute-tokens",
    "x-inference-time",
    "x-lln-document",
    "x-queue-time",
    "x-request-id",
)
"""What answers tell beside their bodies, and browsers hide from pages unless told not to."""


def create_app(
    settings: Settings, engine: AsyncEngine | None = None, metrics: Metrics | None = None
) -> FastAPI:
    """The HTTP application. Its lifespan runs the engine (loaded then if not given) and gRPC."""
    app = FastAPI(
        title="LLN",
        version=version_of("lln"),
        description="Embeddings of texts of any length, and diagnostics of their attention.",
        lifespan=_lifespan,
        openapi_url=None,  # served with the page in http/docs.py
        responses={"4XX": {"model": ErrorAnswer}, "5XX": {"model": ErrorAnswer}},
    )
    app.state.settings = settings
    app.state.engine = engine
    app.state.metrics = metrics or Metrics()
    app.state.keys = ApiKeys(
        (key.get_secret_value() for key in settings.api_keys), settings.api_keys_file
    )
    app.state.unguarded = _unguarded(settings)
    app.state.permits = Permits(settings.max_open_requests, app.state.metrics)
    app.state.big_json = BigJson()
    app.state.draining = Draining(settings.engine.drain_timeout_s)
    app.state.server = None  # where HTTP listens, once it does
    for router in _ROUTERS:
        app.include_router(router)
    install_error_handlers(app, _routes())
    _add_layers(app, settings)
    return app


def _add_layers(app: FastAPI, settings: Settings) -> None:
    """What a request passes before its handler; the last one added is the outermost."""
    state = app.state
    methods = _methods()
    state.metrics.start_methods("http", methods)
    app.add_middleware(
        Incoming,
        max_body_bytes=settings.max_body_bytes,
        body_timeout_s=settings.body_timeout_s,
    )
    app.add_middleware(
        Access,
        origins=Origins(settings.cors_origins),
        keys=state.keys,
        permits=state.permits,
        unguarded=state.unguarded,
    )
    app.add_middleware(
        Observe,
        metrics=state.metrics,
        methods=methods,
        taken_within_s=settings.request_timeout_s,
    )
    app.add_middleware(SecurityHeaders)
    if settings.cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=settings.cors_origins,
            allow_methods=["GET", "POST", "DELETE"],
            # OpenAI's client for browsers sends a dozen of its own, and more with each release.
            allow_headers=["*"],
            expose_headers=_TOLD_IN_HEADERS,
        )


def _unguarded(settings: Settings) -> frozenset[str]:
    metrics = () if settings.metrics_need_key else ("/metrics",)
    return UNGUARDED.union(page.PATHS, metrics)


def _routes() -> list[APIRoute]:
    every = (route for router in _ROUTERS for route in router.routes)
    return [route for route in every if isinstance(route, APIRoute)]


def _methods() -> list[str]:
    """Every verb and route template, as metrics and log lines name them."""
    return [
        f"{method} {route.path}" for route in _routes() for method in sorted(route.methods or ())
    ]


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Everything that lives as long as the server, ended in the opposite order."""
    state = app.state
    settings: Settings = state.settings
    if state.engine is None:
        state.engine = await asyncio.to_thread(
            AsyncEngine.load, settings.models, config=settings.engine, observer=state.metrics
        )
    async with state.engine as engine:
        state.metrics.start_models(engine.models.values())
        state.metrics.start_suites(SUITES)
        state.metrics.start_readiness(lambda: engine.ready and not state.draining.begun)
        device_type = next(iter(engine.models.values())).device.partition(":")[0]
        state.metrics.start_limits(
            queue_tokens=settings.engine.max_queue_tokens,
            batch_tokens=settings.engine.batch_tokens_on(device_type),
        )
        history = await asyncio.to_thread(History, settings.benchmark_history)
        state.jobs = BenchmarkJobs(engine, history, state.metrics)
        state.claims = ClaimsBook(engine)
        state.started_at = int(time.time())
        rpc = grpc_server(
            engine,
            settings,
            state.metrics,
            state.jobs,
            keys=state.keys,
            permits=state.permits,
            draining=state.draining,
            http=state.server,
        )
        # Those who watch a benchmark would keep the server from ending as long as it runs.
        async with _held_until(state.draining, state.jobs), _held_until(state.draining, rpc):
            yield
        await state.claims.stop()
        state.big_json.close()
        await engine.stop(state.draining.deadline)


@asynccontextmanager
async def _held_until(
    draining: Draining, context: AbstractAsyncContextManager[Any]
) -> AsyncIterator[None]:
    """Holds a context in a task of its own, so that it begins to close when draining begins and
    not only once the other protocol has finished."""
    entered = asyncio.get_running_loop().create_future()

    async def hold() -> None:
        async with context:
            entered.set_result(None)
            await draining.wait()

    holder = asyncio.create_task(hold())
    await asyncio.wait({holder, entered}, return_when=asyncio.FIRST_COMPLETED)
    if not entered.done():
        await holder  # raises what kept it from starting
    try:
        yield
    finally:
        draining.begin()
        await holder
