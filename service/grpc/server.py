"""Starts the gRPC server, and stops it without losing a call."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from google.protobuf.descriptor import ServiceDescriptor
from grpc import aio
from grpc_health.v1 import health_pb2

from engine.async_engine import AsyncEngine
from service.addresses import Target
from service.benchmarks.jobs import BenchmarkJobs
from service.body_budget import BodyBudget
from service.deadlines import Draining
from service.grpc.arrivals import Arrivals
from service.grpc.benchmarks import BenchmarksServicer
from service.grpc.diagnostics import DiagnosticsServicer
from service.grpc.embeddings import EmbeddingsServicer
from service.grpc.handlers import MethodHandlers
from service.grpc.health import HealthServicer
from service.grpc.listening import listen, server_options
from service.grpc.models import ModelsServicer
from service.grpc.reflection import VERSIONS, ReflectionServicer
from service.grpc.streams import StreamTasks
from service.grpc.tei import TeiEmbedServicer, TeiInfoServicer
from service.grpc.tei_ranking import TeiRerankServicer, TeiTokenizeServicer
from service.grpc.watches import CODE, WatchLimit
from service.metrics import Metrics
from service.pb.lln.v1 import benchmarks_pb2, diagnostics_pb2, embeddings_pb2, models_pb2
from service.pb.tei.v1 import tei_pb2
from service.security import ApiKeys, RequestLimit
from service.settings import Settings

log = logging.getLogger(__name__)

_EMBEDDINGS = embeddings_pb2.DESCRIPTOR.services_by_name["Embeddings"]
_MODELS = models_pb2.DESCRIPTOR.services_by_name["Models"]
_DIAGNOSTICS = diagnostics_pb2.DESCRIPTOR.services_by_name["Diagnostics"]
_BENCHMARKS = benchmarks_pb2.DESCRIPTOR.services_by_name["Benchmarks"]
_TEI_EMBED = tei_pb2.DESCRIPTOR.services_by_name["Embed"]
_TEI_RERANK = tei_pb2.DESCRIPTOR.services_by_name["Rerank"]
_TEI_TOKENIZE = tei_pb2.DESCRIPTOR.services_by_name["Tokenize"]
_TEI_INFO = tei_pb2.DESCRIPTOR.services_by_name["Info"]
_HEALTH = health_pb2.DESCRIPTOR.services_by_name["Health"]

_TEI = (_TEI_EMBED, _TEI_RERANK, _TEI_TOKENIZE, _TEI_INFO)
_OURS = (_EMBEDDINGS, _MODELS, _DIAGNOSTICS, _BENCHMARKS, *_TEI)
_NAMES = tuple(service.full_name for service in (*_OURS, _HEALTH, *VERSIONS))


@asynccontextmanager
async def grpc_server(
    engine: AsyncEngine,
    settings: Settings,
    metrics: Metrics,
    jobs: BenchmarkJobs,
    *,
    keys: ApiKeys,
    limit: RequestLimit,
    budget: BodyBudget,
    draining: Draining,
    http: Target | None = None,
) -> AsyncIterator[str]:
    """Serves while the context is open, and yields the address it listens on.

    `http` is the HTTP address of the same process, which the serving benchmark measures. Health
    turns to NOT_SERVING when draining is announced. On exit new calls are rejected, and calls in
    flight may use the time that draining has left.
    """
    stream_tasks = StreamTasks()
    arrivals = Arrivals(budget, settings.body_timeout_s, settings.grpc_message_bytes)
    watches = WatchLimit(settings, lambda: metrics.rejected(reason=CODE))
    servicers: dict[ServiceDescriptor, object] = {
        _EMBEDDINGS: EmbeddingsServicer(engine, settings, arrivals, stream_tasks),
        _MODELS: ModelsServicer(engine, settings),
        _DIAGNOSTICS: DiagnosticsServicer(engine, settings),
        _TEI_EMBED: TeiEmbedServicer(engine, settings, arrivals, stream_tasks),
        _TEI_RERANK: TeiRerankServicer(engine, settings, arrivals, stream_tasks),
        _TEI_TOKENIZE: TeiTokenizeServicer(engine, settings, arrivals, stream_tasks),
        _TEI_INFO: TeiInfoServicer(engine, settings),
        _BENCHMARKS: BenchmarksServicer(engine, settings, jobs, http),
        _HEALTH: HealthServicer(engine, _NAMES, stream_tasks, draining, watches),
    }
    for version in VERSIONS:
        servicers[version] = ReflectionServicer(version, _NAMES, settings, stream_tasks)
    streams = RequestLimit(
        settings.max_open_streams, metrics, kind="streams", code="too_many_streams"
    )
    methods = MethodHandlers(
        metrics,
        arrivals,
        keys,
        limit,
        streams,
        max_message_bytes=settings.grpc_message_bytes,
        max_answer_s=settings.request_timeout_s,
    )
    handlers = [
        methods.for_service(service, servicer, guarded=service is not _HEALTH)
        for service, servicer in servicers.items()
    ]
    handlers.append(methods.for_unknown_methods())
    server = aio.server(handlers=handlers, options=server_options(settings))
    address = listen(server, settings)
    await server.start()
    log.info("gRPC is listening", extra={"fields": {"address": address}})
    try:
        yield address
    finally:
        stream_tasks.interrupt()
        await server.stop(draining.left_s)
