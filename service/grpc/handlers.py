"""What every gRPC call passes: decoding, request id, access checks, metrics, the log, the status.

Methods are registered from the descriptors of their service, so none can bypass this.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterator
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    asynccontextmanager,
    contextmanager,
)
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

import grpc
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from engine.errors import DeadlineExceeded, LLNError, RequestCancelled, shown
from engine.steps import Steps
from service.errors import MethodNotAllowed
from service.grpc.arrivals import Arrivals
from service.grpc.context import Context, check_key, send_metadata, text_metadata, write
from service.grpc.decoding import Undecodable, decoded, decoder
from service.grpc.errors import status_on_error
from service.logs import REQUEST_ID_HEADER, current_request_id, request_id_from
from service.metrics import OK, UNMATCHED, Metrics
from service.security import ApiKeys, RequestLimit
from service.tracing import RequestSpan

log = logging.getLogger("service.access")

# A call cancelled this close to its deadline counts as late: clocks differ, and a client that gives
# up at its deadline is often noticed a little earlier here.
_DEADLINE_TOLERANCE_S = 0.05

_DEBUG_METHODS = ("grpc.health.v1.Health/Check",)

Behaviour = Callable[[Any, Context], Any]
Guard = Callable[[Context], AbstractAsyncContextManager[None]]


@dataclass(eq=False)
class CallRecord:
    """What a servicer reports of its call for the log. None if the method has no model or text."""

    model: str | None = None
    tokens: int | None = None

    def add(self, model: str, tokens: int) -> None:
        """Adds the tokens of one more text."""
        self.model = model
        self.tokens = (self.tokens or 0) + tokens


current_record: ContextVar[CallRecord] = ContextVar("current_record")
"""The record of the current call, shared by the tasks that the call starts."""


class MethodHandlers:
    """Builds grpc's handlers from servicers, and wraps each method in the checks above."""

    def __init__(
        self,
        metrics: Metrics,
        arrivals: Arrivals,
        keys: ApiKeys,
        limit: RequestLimit,
        stream_limit: RequestLimit,
        max_message_bytes: int,
        max_answer_s: float,
    ) -> None:
        self._metrics = metrics
        self._arrivals = arrivals
        self._keys = keys
        self._limit = limit
        self._stream_limit = stream_limit
        self._max_message_bytes = max_message_bytes
        self._max_answer_s = max_answer_s
        self._unguarded: set[str] = set()

    def for_service(
        self, service: ServiceDescriptor, servicer: object, *, guarded: bool
    ) -> grpc.GenericRpcHandler[Any, Any]:
        """Handles each method of a service by the servicer's method of the same name."""
        if not guarded:
            self._unguarded.add(service.full_name)
        # Later releases of health or reflection may define methods that ours do not have.
        methods = [method for method in service.methods if hasattr(servicer, method.name)]
        self._metrics.start_methods("grpc", map(_name_of, methods))
        handlers = {
            method.name: self._method_handler(method, getattr(servicer, method.name), guarded)
            for method in methods
        }
        return grpc.method_handlers_generic_handler(service.full_name, handlers)

    def for_unknown_methods(self) -> grpc.GenericRpcHandler[Any, Any]:
        """Rejects all methods that no handler before it has."""
        return _UnknownMethods(self._unknown_method)

    def _unknown_method(self, name: str) -> grpc.RpcMethodHandler[Any, Any]:
        """`name` is written as in the request: /package.Service/Method."""

        async def refuse(requests: object, context: Context) -> None:
            raise MethodNotAllowed(f"there is no method {shown(name)}", code="method_not_found")

        service = name.removeprefix("/").rpartition("/")[0]
        guard = _no_guard if service in self._unguarded else self._guard
        # On the wire a call with one message is a stream of one.
        return grpc.stream_stream_rpc_method_handler(self._streaming(UNMATCHED, refuse, guard))

    def _method_handler(
        self, method: MethodDescriptor, behaviour: Behaviour, guarded: bool
    ) -> grpc.RpcMethodHandler[Any, Any]:
        guard = self._guard if guarded else _no_guard
        decode = decoder(GetMessageClass(method.input_type), self._max_message_bytes)
        encode = _encoder(GetMessageClass(method.output_type))
        name = _name_of(method)
        if method.client_streaming:
            if guarded:
                behaviour = self._checking_keys(behaviour)
            behaviour = self._limited(self._decoding(decode, behaviour))
        else:
            behaviour = self._receiving(decode, behaviour, guarded)
        if not method.server_streaming:
            behaviour = self._answering(behaviour)
        # Calls with one message, or one answer, are registered as streams of one: grpc would
        # otherwise receive the message before it calls us, and send the answer after we return.
        stream = self._streaming(name, behaviour, guard)
        return grpc.stream_stream_rpc_method_handler(stream, None, encode)

    def _receiving(
        self,
        decode: Callable[[bytes], Steps[Message | Undecodable]],
        behaviour: Behaviour,
        guarded: bool,
    ) -> Behaviour:
        """Receives the only message of a call, and counts its memory while the call is open."""
        # Probes come over a connection of their own each time, and give up after a second.
        is_probe = not guarded

        async def receive(messages: AsyncIterable[bytes], context: Context) -> Any:
            async with AsyncExitStack() as held:
                data = await self._arrivals.receive(
                    messages, held, context.peer(), unknown_is_brief=is_probe
                )
                request = decoded(await self._arrivals.decode_in_turn(decode, data))
                return await behaviour(request, context)

        return receive

    def _decoding(
        self, decode: Callable[[bytes], Steps[Message | Undecodable]], behaviour: Behaviour
    ) -> Behaviour:
        """Decodes each message of a stream."""

        async def each(
            messages: AsyncIterable[bytes], context: Context
        ) -> AsyncIterator[Message | Undecodable]:
            async for data in self._arrivals.receive_each(messages, context.peer()):
                yield await self._arrivals.decode_in_turn(decode, data)

        def behave(messages: AsyncIterable[bytes], context: Context) -> Awaitable[Any]:
            answer: Awaitable[Any] = behaviour(each(messages, context), context)
            return answer

        return behave

    def _limited(self, behaviour: Behaviour) -> Behaviour:
        """Limits the streams of requests: each may hold a message that is still arriving."""

        async def behave(requests: AsyncIterable[object], context: Context) -> Any:
            with self._stream_limit.slot():
                return await behaviour(requests, context)

        return behave

    def _answering(self, behaviour: Behaviour) -> Behaviour:
        """Sends the only answer of a call, which is open until the client has taken it."""

        async def answer(requests: AsyncIterable[object], context: Context) -> None:
            await write(context, await behaviour(requests, context), within_s=self._max_answer_s)

        return answer

    def _streaming(self, method: str, behaviour: Behaviour, guard: Guard) -> Behaviour:
        async def answer(request: object, context: Context) -> None:
            async with self._call(method, context), guard(context):
                await behaviour(request, context)

        return answer

    @asynccontextmanager
    async def _guard(self, context: Context) -> AsyncIterator[None]:
        """Requires a key and a request slot, as over HTTP."""
        check_key(context, self._keys)
        with self._limit.slot():
            yield

    def _checking_keys(self, behaviour: Behaviour) -> Behaviour:
        """Checks the key at each message: it may be revoked while the stream is open."""

        async def checked(
            requests: AsyncIterable[object], context: Context
        ) -> AsyncIterator[object]:
            async for request in requests:
                check_key(context, self._keys)
                yield request

        def behave(requests: AsyncIterable[object], context: Context) -> Awaitable[Any]:
            answer: Awaitable[Any] = behaviour(checked(requests, context), context)
            return answer

        return behave

    @asynccontextmanager
    async def _call(self, method: str, context: Context) -> AsyncIterator[None]:
        metadata = text_metadata(context)
        request_id = request_id_from(metadata.get(REQUEST_ID_HEADER))
        current_request_id.set(request_id)  # each call has a task, and so a context, of its own
        async with status_on_error(context):
            with (
                self._metrics.in_progress("grpc"),
                self._metrics.tracing.request("grpc", metadata.get) as span,
                self._outcome(method, context, span),
            ):
                await send_metadata(context, (REQUEST_ID_HEADER, request_id))
                yield

    @contextmanager
    def _outcome(self, method: str, context: Context, span: RequestSpan) -> Iterator[None]:
        """Counts, logs and traces the call when it ends, by its error code."""
        started, code = time.perf_counter(), OK
        record = CallRecord()
        current_record.set(record)
        try:
            yield
        except asyncio.CancelledError:
            code = _why_cancelled(context).code
            raise
        except Exception as error:
            code = error.code if isinstance(error, LLNError) else LLNError.code
            raise
        finally:
            seconds = time.perf_counter() - started
            self._metrics.request_finished(
                protocol="grpc", method=method, code=code, seconds=seconds
            )
            fields = _log_fields(method, code, seconds, record, context)
            quiet = method in _DEBUG_METHODS and code == OK
            level = logging.DEBUG if quiet else logging.INFO
            log.log(level, "request", extra={"fields": fields})
            span.describe(method, fields)


@asynccontextmanager
async def _no_guard(context: Context) -> AsyncIterator[None]:
    yield


class _UnknownMethods(grpc.GenericRpcHandler):  # type: ignore[type-arg]  # generic in the stubs only
    """Replaces grpc's own rejection, which has no error code and is not counted."""

    def __init__(self, handler_of: Callable[[str], grpc.RpcMethodHandler[Any, Any]]) -> None:
        self._handler_of = handler_of

    def service(
        self, handler_call_details: grpc.HandlerCallDetails
    ) -> grpc.RpcMethodHandler[Any, Any]:
        return self._handler_of(handler_call_details.method)


def _encoder(message: type[Message]) -> Callable[[Message | bytes], bytes]:
    """Encodes what a servicer has not encoded itself."""
    encode: Callable[[Any], bytes] = message.SerializeToString

    def encode_once(answer: Message | bytes) -> bytes:
        return answer if isinstance(answer, bytes) else encode(answer)

    return encode_once


def _why_cancelled(context: Context) -> type[LLNError]:
    """grpc cancels a call at its deadline too, perhaps before the engine notices the deadline."""
    remaining: float | None = context.time_remaining()
    if remaining is None or remaining > _DEADLINE_TOLERANCE_S:
        return RequestCancelled
    return DeadlineExceeded


def _log_fields(
    method: str, code: str, seconds: float, record: CallRecord, context: Context
) -> dict[str, str | float]:
    fields: dict[str, str | float | None] = {
        "method": method,
        "code": code,
        "seconds": round(seconds, 6),
        "tokens": record.tokens,
        "model": record.model,
        "peer": _address_of(context.peer()),
    }
    return {name: value for name, value in fields.items() if value is not None}


def _address_of(peer: str) -> str:
    """Returns the host of `ipv4:10.0.0.7:4711` or `ipv6:%5B::1%5D:4711`."""
    _, _, address = unquote(peer).partition(":")
    return address.rpartition(":")[0].strip("[]")


def _name_of(method: MethodDescriptor) -> str:
    return f"{method.containing_service.full_name}/{method.name}"
