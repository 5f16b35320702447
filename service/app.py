"""The server put together: one application, and one lifespan for both of its protocols."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from fastapi import FastAPI
from fastapi.routing import APIRoute

from engine.engine import AsyncEngine
from service.claims import ClaimsBook
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
    structure,
    tokenize,
)
from service.http.answers import ErrorAnswer
from service.http.errors import install_error_handlers
from service.http.incoming import Incoming
from service.http.observe import Observe
from service.jobs import BenchmarkJobs
from service.metrics import Metrics
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
        tokenize,
        models,
        health,
        docs,
        page,
    )
)


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
    app.state.draining = asyncio.Event()
    for router in _ROUTERS:
        app.include_router(router)
    install_error_handlers(app)
    app.add_middleware(Incoming, max_body_bytes=settings.max_body_bytes)
    methods = _methods()
    app.state.metrics.start_methods("http", methods)
    # The last one added is the outermost.
    app.add_middleware(Observe, metrics=app.state.metrics, methods=methods)
    return app


def _methods() -> list[str]:
    """Every verb and route template, as metrics and log lines name them."""
    return [
        f"{method} {route.path}"
        for router in _ROUTERS
        for route in router.routes
        if isinstance(route, APIRoute)
        for method in sorted(route.methods or ())
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
        state.jobs = BenchmarkJobs(engine)
        state.claims = ClaimsBook(engine)
        state.started_at = int(time.time())
        rpc = grpc_server(engine, settings, state.metrics)
        async with _held_until(state.draining, rpc):
            yield
        await state.claims.stop()
        await state.jobs.stop()


@asynccontextmanager
async def _held_until(
    draining: asyncio.Event, context: AbstractAsyncContextManager[Any]
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
        draining.set()
        await holder
