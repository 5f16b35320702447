"""The standard service grpc.health.v1.

grpcio's own health servicer has a status that someone must set. This one asks the engine each time,
so it cannot go stale, and its watchers do not delay the server's stop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from grpc_health.v1 import health_pb2 as pb

from engine.async_engine import AsyncEngine
from engine.errors import ResourceNotFound
from service.deadlines import Draining
from service.grpc.context import Context, write
from service.grpc.streams import StreamTasks
from service.grpc.watches import WatchLimit

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
