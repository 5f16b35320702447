"""The process behind `lln serve`: ports, signals, and an end that leaves nobody unanswered."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import threading
from types import FrameType

import uvicorn
from fastapi import FastAPI

from engine.engine import AsyncEngine
from engine.process import set_aside_what_stays
from service.addresses import own_address
from service.app import create_app
from service.draining import Draining
from service.errors import PortInUse
from service.http.connection import MAX_HEAD_BYTES, Connection
from service.load.client import Target
from service.metrics import Metrics
from service.settings import Settings
from service.tracing import tracing_of

log = logging.getLogger(__name__)

# Connections accepted in the moment of the signal get this long for their request to arrive.
_LAST_ARRIVALS_S = 0.1

_LOOPBACK = {"127.0.0.1", "::1", "localhost"}

# Of those whom the deadline cut short: for their answers to leave, and for traces of the end.
_LAST_WORDS_S = 1.0


def serve(settings: Settings) -> None:
    """Serves until SIGTERM or SIGINT, then answers what is in flight and returns.

    From the signal on all parts of the server share one deadline: HTTP, gRPC, the engine, traces.
    """
    listener = take_port(settings.http_host, settings.http_port)
    _check_free(settings.grpc_host, settings.grpc_port)
    tracing = tracing_of(settings)
    metrics = Metrics(tracing)
    engine = AsyncEngine.load(settings.models, config=settings.engine, observer=metrics)
    app = create_app(settings, engine, metrics)
    config = uvicorn.Config(
        app,
        http=Connection,
        h11_max_incomplete_event_size=MAX_HEAD_BYTES,
        lifespan="off",  # run below, where its errors keep their types
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=75,  # longer than clients keep idle connections: they should close first
        **(settings.tls.uvicorn_options() if settings.tls else {}),
    )
    draining: Draining = app.state.draining
    with asyncio.Runner(loop_factory=config.get_loop_factory()) as runner:
        try:
            runner.run(_run(app, _Server(config, draining), listener, settings))
        finally:
            tracing.stop(max(draining.left_s, _LAST_WORDS_S))
        _leave(draining)


async def _run(app: FastAPI, server: _Server, listener: socket.socket, settings: Settings) -> None:
    host, port = listener.getsockname()[:2]
    app.state.server = Target(
        host=own_address(host),
        port=port,
        headers=app.state.keys.for_myself(),
        tls=settings.tls is not None,
        needs_certificate=settings.tls_client_ca_file is not None,
    )
    async with app.router.lifespan_context(app):
        set_aside_what_stays()
        scheme = "http" if settings.tls is None else "https"
        fields = {
            "http": f"{scheme}://{host}:{port}",
            "grpc": f"{settings.grpc_host}:{settings.grpc_port}",
            "models": list(app.state.engine.models),
        }
        log.info("serving", extra={"fields": fields})
        _warn_if_open(app, settings)
        await server.serve([listener])
        log.info("stopping")
    log.info("stopped")


def _warn_if_open(app: FastAPI, settings: Settings) -> None:
    hosts = {settings.http_host, settings.grpc_host}
    if not app.state.keys.required and not hosts <= _LOOPBACK:
        log.warning("anyone who reaches these ports is served: there are no API keys")


class _Server(uvicorn.Server):
    """uvicorn, but a signal that was obeyed is not raised again, draining shows at once, and its
    deadline is the one that others have too."""

    def __init__(self, config: uvicorn.Config, draining: Draining) -> None:
        super().__init__(config)
        self._draining = draining

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.force_exit = self.should_exit  # asked for a second time
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        log.info("draining")
        self._draining.begin()
        await asyncio.sleep(_LAST_ARRIVALS_S)
        # Only now is it known how long that may be; uvicorn's type is narrower than its use.
        self.config.timeout_graceful_shutdown = self._draining.left_s  # type: ignore[assignment]
        await super().shutdown(sockets)
        if self.server_state.tasks:  # cut short, and about to say so
            await asyncio.wait(self.server_state.tasks, timeout=_LAST_WORDS_S)


def _leave(draining: Draining) -> None:
    """Ends the process at once if a thread still computes what nobody waits for any more.

    A unit that outlasts the drain cannot be interrupted, and Python aborts when it is taken down
    under a thread inside torch. A text that is still tokenised would be waited for to its end.
    """
    if not draining.left_s or any(thread.daemon for thread in threading.enumerate()):
        logging.shutdown()
        os._exit(0)


def take_port(host: str, port: int) -> socket.socket:
    """Takes the port before the weights are read: a conflict should not cost that wait.

    Only who listens has it: two processes may be bound to one port, and the event loop would say
    nothing of the second one's failure to listen.
    """
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen()
    except OSError as error:
        listener.close()
        raise PortInUse(f"cannot listen on {host}:{port}: {error.strerror}") from error
    return listener


def _check_free(host: str, port: int) -> None:
    """gRPC binds for itself, later; this only tells early."""
    take_port(host, port).close()
