"""The standard services grpc.health.v1 and grpc.reflection.

grpcio's own health servicer has a status that someone must set. This one asks the engine each time,
so it cannot go stale, and its watchers do not delay the server's stop. Reflection lets clients such
as grpcurl list the services and messages.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, Iterable
from typing import Any

from grpc_health.v1 import health_pb2 as pb
from grpc_reflection.v1alpha import reflection

from engine.async_engine import AsyncEngine
from engine.errors import ResourceNotFound
from service.deadlines import Draining
from service.fairness import receive_within
from service.grpc.context import Context, write
from service.grpc.decoding import decode_each
from service.grpc.streams import StreamTasks
from service.grpc.watches import WatchLimit
from service.settings import Settings

_POLL_INTERVAL_S = 0.2


class HealthServicer:
    def __init__(
        self,
        engine: AsyncEngine,
        services: Iterable[str],
        stream_tasks: StreamTasks,
        draining: Draining,
        watches: WatchLimit,
    ) -> None:
        self._engine = engine
        self._services = frozenset(services) | {""}
        self._stream_tasks = stream_tasks
        self._draining = draining
        self._watches = watches

    async def Check(
        self, request: pb.HealthCheckRequest, context: Context
    ) -> pb.HealthCheckResponse:
        if request.service not in self._services:
            raise ResourceNotFound(
                f"there is no service {request.service!r} on this server",
                param="service",
                actual=request.service,
            )
        return pb.HealthCheckResponse(status=self._status(request.service))

    async def List(self, request: pb.HealthListRequest, context: Context) -> pb.HealthListResponse:
        statuses = {
            service: pb.HealthCheckResponse(status=self._status(service))
            for service in self._services
        }
        return pb.HealthListResponse(statuses=statuses)

    async def Watch(self, request: pb.HealthCheckRequest, context: Context) -> None:
        with self._watches.slot(context.peer()):
            if not await self._stream_tasks.run(self._watch(request.service, context)):
                await write(context, pb.HealthCheckResponse(status=self._status(request.service)))

    async def _watch(self, service: str, context: Context) -> None:
        last = None
        while True:
            status = self._status(service)
            if status != last:
                await write(context, pb.HealthCheckResponse(status=status))
            last = status
            await asyncio.sleep(_POLL_INTERVAL_S)

    def _status(self, service: str) -> pb.HealthCheckResponse.ServingStatus:
        if service not in self._services:
            return pb.HealthCheckResponse.SERVICE_UNKNOWN
        if self._engine.ready and not self._draining.announced:
            return pb.HealthCheckResponse.SERVING
        return pb.HealthCheckResponse.NOT_SERVING


class ReflectionServicer:
    """grpcio's reflection servicer, with streams that end when the server stops."""

    def __init__(
        self, services: Iterable[str], settings: Settings, stream_tasks: StreamTasks
    ) -> None:
        self._answers = reflection.aio.ReflectionServicer(services)  # type: ignore[attr-defined]  # stubs
        self._settings = settings
        self._stream_tasks = stream_tasks

    async def ServerReflectionInfo(self, requests: AsyncIterable[Any], context: Context) -> None:
        await self._stream_tasks.run(self._answer(requests, context))

    async def _answer(self, requests: AsyncIterable[Any], context: Context) -> None:
        messages = decode_each(receive_within(requests, self._settings.body_timeout_s))
        async for answer in self._answers.ServerReflectionInfo(messages, context):
            await write(context, answer, within_s=self._settings.request_timeout_s)
