"""Listens for gRPC and forwards each call, as it is, to a replica's own gRPC server.

Serve's proxy cannot carry these services: it tells methods apart by their last name only, which two
of our services share, and passes on neither deadlines nor the fields of errors. Messages are not
decoded here. A call that has one short message and whose replica dies before it has answered goes
to another once; any other ends at once with `replica_lost`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Coroutine
from contextlib import nullcontext
from itertools import count
from typing import Any

import grpc
from grpc import StatusCode, aio

from engine.errors import EngineUnavailable
from service.fairness import read_timeout
from service.grpc.context import Context, check_key
from service.grpc.errors import status_on_error
from service.grpc.listening import listen, server_options
from service.grpc.watches import WatchLimit
from service.replicas.errors import ReplicaLost, stopping
from service.replicas.ledger import LONG_FROM, Ledger
from service.replicas.ledgers import newest_ledger
from service.replicas.options import APPLICATION, REPLICAS
from service.replicas.price import Price, price_of_message, takes_stream
from service.settings import Settings

log = logging.getLogger(__name__)

_HEALTH = "/grpc.health.v1.Health/"
"""Probes need no key."""

_WATCH = f"{_HEALTH}Watch"

_FIRST_REPLICA_S = 60.0
_LOOK_EVERY_S = 0.1
_OURS = ("user-agent", "grpc-", "content-type", "te", ":")
"""Metadata of the connection itself, which the next one has of its own."""


class GrpcFront:
    """A Serve deployment without a route: it needs Serve only to know the replicas."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._keys = settings.open_keys()
        self._channels: dict[str, aio.Channel] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._numbers = count()
        self._server: aio.Server | None = None
        self._is_stopping = False
        self._ledger = Ledger()
        self._watches = WatchLimit(settings)

    async def reconfigure(self, _: object) -> None:
        """Serve calls this on its event loop before it takes the deployment for ready."""
        if self._server is not None:
            return
        server = aio.server(
            handlers=[_Everything(self._forward)], options=server_options(self._settings)
        )
        address = listen(server, self._settings)
        await server.start()
        self._server = server
        self._watching = asyncio.create_task(self._find_replicas())
        log.info("gRPC is listening", extra={"fields": {"address": address}})

    async def check_health(self) -> None:
        if self._watching.done():
            self._watching.result()

    def __del__(self) -> Coroutine[Any, Any, None] | None:
        """Serve awaits this when it stops the deployment. By itself it would not wait for calls in
        flight, which are no requests of its own."""
        self._is_stopping = True
        server, self._server = self._server, None
        return None if server is None else server.stop(self._settings.engine.drain_timeout_s)

    async def _find_replicas(self) -> None:
        """A handle's router starts with its first call, and learns of all changes from then on."""
        from ray import serve

        handle = serve.get_deployment_handle(REPLICAS, app_name=APPLICATION)
        await handle.ping.remote()
        self._ledger = newest_ledger() or self._ledger

    async def _forward(self, method: str, messages: AsyncIterator[bytes], context: Context) -> None:
        async with status_on_error(context):
            if not method.startswith(_HEALTH):
                # The replicas do so too, but a message would have been received by then.
                check_key(context, self._keys)
            # Only here is a connection a caller's: the replicas see this one's.
            with self._watches.slot(context.peer()) if method == _WATCH else nullcontext():
                async with read_timeout(self._settings.body_timeout_s):
                    first = await anext(messages, b"")
                rest = messages if takes_stream(method) else None
                await self._send(method, first, rest, context)

    async def _send(
        self, method: str, first: bytes, rest: AsyncIterator[bytes] | None, context: Context
    ) -> None:
        price = price_of_message(method, first)
        may_repeat = rest is None and not price.is_call and price.tokens < LONG_FROM
        tried: set[str] = set()
        while True:
            id, address = await self._choose(price, tried)
            request = f"grpc-{next(self._numbers)}"
            self._ledger.send(request, id, price)
            try:
                lost = await self._over(address, method, _joined(first, rest), context)
            finally:
                self._ledger.answered(request, id)
            if lost is None:
                return
            if not may_repeat or tried:
                raise lost
            tried.add(id)

    async def _choose(self, price: Price, tried: set[str]) -> tuple[str, str]:
        loop = asyncio.get_running_loop()
        wait_s = min(_FIRST_REPLICA_S, self._settings.request_timeout_s)
        ends_at = loop.time() + wait_s
        while True:
            for id in self._ledger.order(price):
                report = self._ledger.report_of(id)
                if report is not None and report.address and id not in tried:
                    return id, report.address
            if self._is_stopping:  # so are the replicas, and no other will come
                raise stopping()
            if loop.time() >= ends_at:
                raise EngineUnavailable(
                    f"no replica was ready within {wait_s:g} s", code="no_replica", limit=wait_s
                )
            await asyncio.sleep(_LOOK_EVERY_S)

    async def _over(
        self, address: str, method: str, messages: AsyncIterator[bytes], context: Context
    ) -> ReplicaLost | None:
        """Passes one call on; returns an error if the replica is gone and has not answered yet."""
        call = self._channel(address).stream_stream(method, None, None)(
            messages, timeout=context.time_remaining(), metadata=_metadata(context)
        )
        has_begun = False
        try:
            metadata = await call.initial_metadata()
            has_begun = bool(metadata)
            if metadata:
                await context.send_initial_metadata(tuple(metadata))
            async for message in call:
                has_begun = True
                await context.write(message)
        except aio.AioRpcError:
            pass  # its status is passed on
        except asyncio.CancelledError:
            call.cancel()
            raise
        code, details = await call.code(), await call.details()
        trailing = tuple(await call.trailing_metadata() or ())
        if code is StatusCode.UNAVAILABLE and not trailing:  # our servers' errors have metadata
            lost = ReplicaLost("the replica that read this request ended before its answer did")
            if not has_begun:
                return lost
            raise lost
        context.set_trailing_metadata(trailing)
        context.set_code(code)
        context.set_details(details or "")
        return None

    def _channel(self, address: str) -> aio.Channel:
        channel = self._channels.get(address)
        if channel is None:
            self._close_others(self._ledger.addresses() | {address})
            unlimited = [(f"grpc.max_{way}_message_length", -1) for way in ("send", "receive")]
            channel = self._channels[address] = aio.insecure_channel(address, options=unlimited)
        return channel

    def _close_others(self, addresses: set[str]) -> None:
        """Replicas come and go: channels to those that are gone end with their last calls."""
        for gone in self._channels.keys() - addresses:
            closing = self._channels.pop(gone).close(self._settings.request_timeout_s)
            self._closing.add(task := asyncio.create_task(closing))
            task.add_done_callback(self._closing.discard)


class _Everything(grpc.GenericRpcHandler):  # type: ignore[type-arg]  # generic in the stubs only
    """All methods alike. On the wire a call with one message is a stream of one."""

    def __init__(self, forward: Any) -> None:
        self._forward = forward

    def service(
        self, handler_call_details: grpc.HandlerCallDetails
    ) -> grpc.RpcMethodHandler[Any, Any]:
        method = handler_call_details.method

        async def forward(messages: AsyncIterator[bytes], context: Context) -> None:
            await self._forward(method, messages, context)

        return grpc.stream_stream_rpc_method_handler(forward)


async def _joined(first: bytes, rest: AsyncIterator[bytes] | None) -> AsyncIterator[bytes]:
    yield first
    if rest is not None:
        async for message in rest:
            yield message


def _metadata(context: Context) -> tuple[tuple[str, str | bytes], ...]:
    return tuple(
        (name, value)
        for name, value in context.invocation_metadata() or ()
        if not name.startswith(_OURS)
    )
