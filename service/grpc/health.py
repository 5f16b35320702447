"""grpc.health.v1: whether the engine answers, asked anew each time, for the whole and each service.

The servicer that comes with grpcio keeps a status that somebody has to set; this one cannot go
stale, and its watchers do not hold the server up when it stops.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from grpc_health.v1 import health_pb2 as pb

from engine.engine import AsyncEngine
from engine.errors import ResourceNotFound
from service.grpc.listeners import Listeners
from service.grpc.status import Context, write

_POLL_INTERVAL_S = 0.2


class HealthServicer:
    def __init__(self, engine: AsyncEngine, services: Iterable[str], listeners: Listeners) -> None:
        self._engine = engine
        self._services = frozenset(services) | {""}
        self._listeners = listeners
        self._stopping = False

    def stop_serving(self) -> None:
        """From here on the answer is NOT_SERVING."""
        self._stopping = True

    async def Check(
        self, request: pb.HealthCheckRequest, context: Context
    ) -> pb.HealthCheckResponse:
        if request.service not in self._services:
            raise ResourceNotFound(
                f"there is no service {request.service!r} here",
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
        if not await self._listeners.run(self._watch(request.service, context)):
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
        if self._engine.ready and not self._stopping:
            return pb.HealthCheckResponse.SERVING
        return pb.HealthCheckResponse.NOT_SERVING
