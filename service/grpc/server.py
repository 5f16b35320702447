"""The gRPC server as a part of the process: started, and stopped without losing a call."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from grpc import aio
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from engine.engine import AsyncEngine
from service.addresses import in_url
from service.api_keys import ApiKeys
from service.benchmarks.jobs import BenchmarkJobs
from service.draining import Draining
from service.errors import PortInUse
from service.grpc.benchmarks import BenchmarksServicer
from service.grpc.calls import Calls
from service.grpc.diagnostics import DiagnosticsServicer
from service.grpc.embeddings import EmbeddingsServicer
from service.grpc.health import HealthServicer
from service.grpc.listeners import Listeners
from service.grpc.models import ModelsServicer
from service.grpc.reflection import ReflectionServicer
from service.grpc.tei import TeiEmbedServicer, TeiInfoServicer
from service.load.client import Target
from service.metrics import Metrics
from service.pb.lln.v1 import benchmarks_pb2, diagnostics_pb2, embeddings_pb2, models_pb2
from service.pb.tei.v1 import tei_pb2
from service.permits import Permits
from service.settings import MOST_OF_GRPC, Settings

log = logging.getLogger(__name__)

_EMBEDDINGS = embeddings_pb2.DESCRIPTOR.services_by_name["Embeddings"]
_MODELS = models_pb2.DESCRIPTOR.services_by_name["Models"]
_DIAGNOSTICS = diagnostics_pb2.DESCRIPTOR.services_by_name["Diagnostics"]
_BENCHMARKS = benchmarks_pb2.DESCRIPTOR.services_by_name["Benchmarks"]
_TEI_EMBED = tei_pb2.DESCRIPTOR.services_by_name["Embed"]
_TEI_INFO = tei_pb2.DESCRIPTOR.services_by_name["Info"]
_HEALTH = health_pb2.DESCRIPTOR.services_by_name["Health"]
_REFLECTION = reflection_pb2.DESCRIPTOR.services_by_name["ServerReflection"]

# So far beyond the limit a message is read, to be refused with its size and a code: what grpc
# itself refuses has neither.
_ROOM_TO_REFUSE = 2**20

_OURS = (_EMBEDDINGS, _MODELS, _DIAGNOSTICS, _BENCHMARKS, _TEI_EMBED, _TEI_INFO)
_NAMES = tuple(service.full_name for service in (*_OURS, _HEALTH, _REFLECTION))


@asynccontextmanager
async def grpc_server(
    engine: AsyncEngine,
    settings: Settings,
    metrics: Metrics,
    jobs: BenchmarkJobs,
    *,
    keys: ApiKeys,
    permits: Permits,
    draining: Draining,
    http: Target | None = None,
) -> AsyncIterator[str]:
    """Serves while the context is open, and gives the address that is listened on.

    `http` is where the same process listens for HTTP, which the serving benchmark measures.
    Leaving it turns health off, refuses new calls and lets those in flight finish in the time that
    draining has left.
    """
    listeners = Listeners()
    health = HealthServicer(engine, _NAMES, listeners)
    servicers = {
        _EMBEDDINGS: EmbeddingsServicer(engine, settings, listeners),
        _MODELS: ModelsServicer(engine, settings),
        _DIAGNOSTICS: DiagnosticsServicer(engine, settings),
        _TEI_EMBED: TeiEmbedServicer(engine, settings, listeners),
        _TEI_INFO: TeiInfoServicer(engine, settings),
        _BENCHMARKS: BenchmarksServicer(engine, settings, jobs, http),
        _HEALTH: health,
        _REFLECTION: ReflectionServicer(_NAMES, settings, listeners),
    }
    calls = Calls(metrics, keys, permits, settings.max_body_bytes)
    handlers = [
        calls.handler(service, servicer, guarded=service is not _HEALTH)
        for service, servicer in servicers.items()
    ]
    handlers.append(calls.other_methods())
    server = aio.server(handlers=handlers, options=_options(settings))
    address = _listen(server, settings)
    await server.start()
    log.info("gRPC listens", extra={"fields": {"address": address}})
    try:
        yield address
    finally:
        health.stop_serving()
        listeners.interrupt()
        await server.stop(draining.left_s)


def _options(settings: Settings) -> list[tuple[str, int]]:
    most_read = min(settings.max_body_bytes + _ROOM_TO_REFUSE, MOST_OF_GRPC)
    return [
        ("grpc.max_receive_message_length", most_read),
        ("grpc.max_send_message_length", -1),
        ("grpc.max_concurrent_streams", settings.max_streams_per_connection),
        # Without this a second server would listen on the same port and take half the calls.
        ("grpc.so_reuseport", 0),
    ]


def _listen(server: aio.Server, settings: Settings) -> str:
    host = in_url(settings.grpc_host)
    address = f"{host}:{settings.grpc_port}"
    try:
        if settings.tls is None:
            port = server.add_insecure_port(address)
        else:
            port = server.add_secure_port(address, settings.tls.grpc_credentials())
    except RuntimeError as error:  # somebody took it while the weights were read
        raise PortInUse(f"cannot listen on {address}: {error}") from error
    return f"{host}:{port}"
