"""The gRPC server as a part of the process: started, and stopped without losing a call."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from grpc import aio
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from engine.engine import AsyncEngine
from service.grpc.calls import Calls
from service.grpc.diagnostics import DiagnosticsServicer
from service.grpc.embeddings import EmbeddingsServicer
from service.grpc.health import HealthServicer
from service.grpc.listeners import Listeners
from service.grpc.models import ModelsServicer
from service.grpc.reflection import ReflectionServicer
from service.metrics import Metrics
from service.pb.lln.v1 import diagnostics_pb2, embeddings_pb2, models_pb2
from service.settings import Settings

log = logging.getLogger(__name__)

_EMBEDDINGS = embeddings_pb2.DESCRIPTOR.services_by_name["Embeddings"]
_MODELS = models_pb2.DESCRIPTOR.services_by_name["Models"]
_DIAGNOSTICS = diagnostics_pb2.DESCRIPTOR.services_by_name["Diagnostics"]
_HEALTH = health_pb2.DESCRIPTOR.services_by_name["Health"]
_REFLECTION = reflection_pb2.DESCRIPTOR.services_by_name["ServerReflection"]

_OURS = (_EMBEDDINGS, _MODELS, _DIAGNOSTICS)
_NAMES = tuple(service.full_name for service in (*_OURS, _HEALTH, _REFLECTION))


@asynccontextmanager
async def grpc_server(
    engine: AsyncEngine, settings: Settings, metrics: Metrics
) -> AsyncIterator[str]:
    """Serves while the context is open, and gives the address that is listened on.

    Leaving it turns health off, refuses new calls and lets those in flight finish.
    """
    listeners = Listeners()
    health = HealthServicer(engine, _NAMES, listeners)
    servicers = {
        _EMBEDDINGS: EmbeddingsServicer(engine, settings, listeners),
        _MODELS: ModelsServicer(engine),
        _DIAGNOSTICS: DiagnosticsServicer(engine, settings),
        _HEALTH: health,
        _REFLECTION: ReflectionServicer(_NAMES, listeners),
    }
    calls = Calls(metrics)
    handlers = [calls.handler(service, servicer) for service, servicer in servicers.items()]
    server = aio.server(handlers=handlers, options=_options(settings))
    address = _listen(server, settings)
    await server.start()
    log.info("gRPC listens", extra={"fields": {"address": address}})
    try:
        yield address
    finally:
        health.stop_serving()
        listeners.interrupt()
        await server.stop(settings.engine.drain_timeout_s)


def _options(settings: Settings) -> list[tuple[str, int]]:
    return [
        ("grpc.max_receive_message_length", settings.max_body_bytes),
        ("grpc.max_send_message_length", -1),
        # Without this a second server would listen on the same port and take half the calls.
        ("grpc.so_reuseport", 0),
    ]


def _listen(server: aio.Server, settings: Settings) -> str:
    host = f"[{settings.grpc_host}]" if ":" in settings.grpc_host else settings.grpc_host
    port = server.add_insecure_port(f"{host}:{settings.grpc_port}")
    return f"{host}:{port}"
