"""The process of `lln serve`: its protocols, its signals, and a stop that answers every request."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import threading
import time
from collections.abc import Sequence
from functools import partial
from types import FrameType
from typing import cast

import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.flow_control import CLOSE_HEADER

from engine.model.embedding_model import EmbeddingModel
from engine.platform.process import freeze_loaded_objects
from engine.ranks.launcher import RankLauncher
from service.addresses import Target, in_url, own_address
from service.app import create_app, engine_of
from service.deadlines import Draining
from service.http.connection import Connection
from service.metrics import Metrics
from service.settings import Settings
from service.tracing import tracing_of

log = logging.getLogger(__name__)

_LOOPBACK = {"127.0.0.1", "::1", "localhost"}

_TICK_S = 0.1
"""How often a notice looks whether a second signal ends it."""

_LAST_ARRIVALS_S = 0.1
"""Time for requests to arrive on connections that were accepted as the signal came."""

_LAST_ANSWERS_S = 1.0
"""Time to send the errors of requests that the drain deadline cut short, and the last traces."""


def serve(
    settings: Settings,
    models: Sequence[EmbeddingModel],
    listener: socket.socket,
    launcher: RankLauncher | None = None,
) -> None:
    """Serves these models until SIGTERM or SIGINT, then answers the requests in flight and returns.

    From the end of the notice on, HTTP, gRPC, the engine and tracing share one deadline.
    `launcher` starts the other ranks, where this process does not start them itself.
    """
    tracing = tracing_of(settings)
    metrics = Metrics(tracing)
    app = create_app(settings, engine_of(models, settings, metrics, launcher), metrics)
    config = uvicorn.Config(
        app,
        http=_connection(settings),
        ws="none",
        lifespan="off",  # run in _run, where its errors keep their types
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=75,  # clients give up idle connections earlier
        **(settings.tls.uvicorn_options() if settings.tls else {}),
    )
    draining: Draining = app.state.draining
    with asyncio.Runner(loop_factory=config.get_loop_factory()) as runner:
        try:
            runner.run(
                _run(app, _Server(config, draining, settings.shutdown_notice_s), listener, settings)
            )
        finally:
            tracing.stop(max(draining.left_s, _LAST_ANSWERS_S))
        _exit_if_still_computing(draining)


async def _run(app: FastAPI, server: _Server, listener: socket.socket, settings: Settings) -> None:
    host, port = listener.getsockname()[:2]
    app.state.server = Target(
        host=own_address(host),
        port=port,
        headers=app.state.keys.add_internal_key(),
        tls=settings.tls is not None,
        verify=False,  # it is this process, and its certificate is for the name that clients use
        needs_certificate=settings.tls_client_ca_file is not None,
    )
    async with app.router.lifespan_context(app):
        freeze_loaded_objects()
        scheme = "http" if settings.tls is None else "https"
        fields = {
            "http": f"{scheme}://{in_url(host)}:{port}",
            "grpc": app.state.grpc_address,
            "models": list(app.state.engine.models),
        }
        log.info("serving", extra={"fields": fields})
        _warn_if_open(app, settings)
        await server.serve([listener])
        log.info("stopping")
    log.info("stopped")


def _connection(settings: Settings) -> type[asyncio.Protocol]:
    """What uvicorn makes for each connection; its type asks for a class."""
    made = partial(
        Connection, timeout_s=settings.body_timeout_s, answer_timeout_s=settings.request_timeout_s
    )
    return cast("type[asyncio.Protocol]", made)


def _warn_if_open(app: FastAPI, settings: Settings) -> None:
    hosts = {settings.http_host, settings.grpc_host}
    if not app.state.keys.required and not hosts <= _LOOPBACK:
        log.warning("no API keys are set: everyone who can reach these ports is served")


class _Server(uvicorn.Server):
    """uvicorn with our shutdown: it is announced, then drains by the deadline that all parts share.

    uvicorn would also raise the signal again once it has stopped.
    """

    def __init__(self, config: uvicorn.Config, draining: Draining, notice_s: float) -> None:
        super().__init__(config)
        self._draining = draining
        self._notice_s = notice_s

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self.should_exit and not self.force_exit:  # the second signal
            self.force_exit = True
            self._draining.cut_short()
            # What waits already is not waited for.
            asyncio.get_running_loop().call_later(2 * _LAST_ANSWERS_S, _exit)
        self.should_exit = True

    async def main_loop(self) -> None:
        await super().main_loop()
        await self._give_notice()

    async def _give_notice(self) -> None:
        """Serves on while load balancers learn from readiness that they should go elsewhere.

        Connections close after their next answer: a balancer cannot move those that stay open.
        """
        self._draining.announce()
        if not self._notice_s:
            return
        log.info("stop announced", extra={"fields": {"notice_s": self._notice_s}})
        self.server_state.default_headers = [*self.server_state.default_headers, CLOSE_HEADER]
        ends_at = time.monotonic() + self._notice_s
        while time.monotonic() < ends_at and not self.force_exit:
            await asyncio.sleep(_TICK_S)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        log.info("draining")
        self._draining.begin()
        await asyncio.sleep(_LAST_ARRIVALS_S)
        # The time left is known only now; uvicorn accepts a float where its type says int.
        self.config.timeout_graceful_shutdown = self._draining.left_s  # type: ignore[assignment]
        await super().shutdown(sockets)
        if self.server_state.tasks:  # cancelled, and sending their errors
            await asyncio.wait(self.server_state.tasks, timeout=_LAST_ANSWERS_S)


def _exit_if_still_computing(draining: Draining) -> None:
    """Ends the process at once if a thread still computes something that nobody waits for.

    A batch that outlasts the drain cannot be interrupted, and Python aborts if it exits while a
    thread is inside torch. It would also wait for a text that is still being tokenised.
    """
    if not draining.left_s or any(thread.daemon for thread in threading.enumerate()):
        _exit()


def _exit() -> None:
    logging.shutdown()
    os._exit(0)
