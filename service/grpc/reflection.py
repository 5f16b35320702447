"""grpc.reflection: lets grpcurl and its like ask what services and messages there are."""

from __future__ import annotations

from collections.abc import AsyncIterable, Iterable
from typing import Any

from grpc_reflection.v1alpha import reflection

from service.grpc.calls import decoded
from service.grpc.listeners import Listeners
from service.grpc.status import Context, write
from service.settings import Settings
from service.slow_callers import arriving


class ReflectionServicer:
    """grpcio's servicer, whose streams end when the server stops."""

    def __init__(self, services: Iterable[str], settings: Settings, listeners: Listeners) -> None:
        self._answers = reflection.aio.ReflectionServicer(services)  # type: ignore[attr-defined]  # stubs
        self._settings = settings
        self._listeners = listeners

    async def ServerReflectionInfo(self, requests: AsyncIterable[Any], context: Context) -> None:
        await self._listeners.run(self._answer(requests, context))

    async def _answer(self, requests: AsyncIterable[Any], context: Context) -> None:
        in_time = arriving(requests, self._settings.body_timeout_s)
        readable = (decoded(request) async for request in in_time)
        async for answer in self._answers.ServerReflectionInfo(readable, context):
            await write(context, answer, within_s=self._settings.request_timeout_s)
