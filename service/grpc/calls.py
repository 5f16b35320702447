"""What surrounds every call, whichever method it is: decoding, its request id, metrics, its status.

Methods are registered from the descriptors of their service, so that none can go without.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from typing import Any, NamedTuple, TypeVar
from urllib.parse import unquote

import grpc
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

from engine.errors import DeadlineExceeded, InvalidInput, LLNError, RequestCancelled, shown
from service.api_keys import ApiKeys
from service.errors import BodyTooLarge, MethodNotAllowed, UnreadableBody
from service.grpc.record import CallRecord, current_record
from service.grpc.status import Context, send_metadata, status_on_error
from service.metrics import OK, UNMATCHED, Metrics
from service.permits import Permits
from service.request_ids import HEADER, current_request_id, take_or_make
from service.tracing import RequestSpan

log = logging.getLogger("service.access")

# Clocks that differ, and what a deadline lost on its way here.
_ON_THE_WAY_S = 0.05

_QUIET = ("grpc.health.v1.Health/Check",)

MessageT = TypeVar("MessageT", bound=Message)
Behaviour = Callable[[Any, Context], Any]
Guard = Callable[[Context], AbstractAsyncContextManager[None]]


class Undecodable(NamedTuple):
    """What a decoder returns for bytes that it does not take for a message: raising there tells a
    client nothing but UNKNOWN."""

    error: InvalidInput


def decoded(request: MessageT | Undecodable) -> MessageT:
    """The request itself, or the error that it could not be read with."""
    if isinstance(request, Undecodable):
        raise request.error
    return request


class Calls:
    """Wraps the methods of services, guards them and counts what comes of them."""

    def __init__(
        self, metrics: Metrics, keys: ApiKeys, permits: Permits, max_message_bytes: int
    ) -> None:
        self._metrics = metrics
        self._keys = keys
        self._permits = permits
        self._max_message_bytes = max_message_bytes
        self._open_to_all: set[str] = set()

    def handler(
        self, service: ServiceDescriptor, servicer: object, *, guarded: bool
    ) -> grpc.GenericRpcHandler[Any, Any]:
        """The methods of a service, each answered by the servicer's method of the same name."""
        if not guarded:
            self._open_to_all.add(service.full_name)
        # A later release of health or reflection may know methods that we do not.
        methods = [method for method in service.methods if hasattr(servicer, method.name)]
        self._metrics.start_methods("grpc", map(_method_name, methods))
        handlers = {
            method.name: self._method_handler(method, getattr(servicer, method.name), guarded)
            for method in methods
        }
        return grpc.method_handlers_generic_handler(service.full_name, handlers)

    def other_methods(self) -> grpc.GenericRpcHandler[Any, Any]:
        """Refuses whatever no handler before it has."""
        return _OtherMethods(self._no_such_method)

    def _no_such_method(self, name: str) -> grpc.RpcMethodHandler[Any, Any]:
        async def refuse(requests: object, context: Context) -> None:
            raise MethodNotAllowed(f"there is no method {shown(name)}", code="method_not_found")

        guard = _no_guard if _service_of(name) in self._open_to_all else self._guard
        # A call of one message is a stream of one.
        return grpc.stream_stream_rpc_method_handler(self._streaming(UNMATCHED, refuse, guard))

    def _method_handler(
        self, method: MethodDescriptor, behaviour: Behaviour, guarded: bool
    ) -> grpc.RpcMethodHandler[Any, Any]:
        guard = self._guard if guarded else _no_guard
        decode = _decoder(GetMessageClass(method.input_type), self._max_message_bytes)
        encode = GetMessageClass(method.output_type).SerializeToString
        name = _method_name(method)
        if method.client_streaming and method.server_streaming:
            talk = self._with_keys_checked(behaviour) if guarded else behaviour
            stream = self._streaming(name, talk, guard)
            return grpc.stream_stream_rpc_method_handler(stream, decode, encode)
        if method.server_streaming:
            stream = self._streaming(name, _with_decoded_request(behaviour), guard)
            return grpc.unary_stream_rpc_method_handler(stream, decode, encode)
        unary = self._unary(name, _with_decoded_request(behaviour), guard)
        return grpc.unary_unary_rpc_method_handler(unary, decode, encode)

    def _unary(self, method: str, behaviour: Behaviour, guard: Guard) -> Behaviour:
        async def answer(request: object, context: Context) -> Message:
            async with self._call(method, context), guard(context):
                response: Message = await behaviour(request, context)
            return response

        return answer

    def _streaming(self, method: str, behaviour: Behaviour, guard: Guard) -> Behaviour:
        async def answer(request: object, context: Context) -> None:
            async with self._call(method, context), guard(context):
                await behaviour(request, context)

        return answer

    @asynccontextmanager
    async def _guard(self, context: Context) -> AsyncIterator[None]:
        """Asks for a key and a permit, as over HTTP."""
        self._check_key(context)
        with self._permits.one():
            yield

    def _check_key(self, context: Context) -> None:
        header_of = _text_header(context)
        self._keys.check(header_of("authorization"), header_of("x-api-key"))

    def _with_keys_checked(self, behaviour: Behaviour) -> Behaviour:
        """A key may be taken back while its stream goes on: each message needs one that is good."""

        async def checked(
            requests: AsyncIterable[object], context: Context
        ) -> AsyncIterator[object]:
            async for request in requests:
                self._check_key(context)
                yield request

        def behave(requests: AsyncIterable[object], context: Context) -> Awaitable[Any]:
            answer: Awaitable[Any] = behaviour(checked(requests, context), context)
            return answer

        return behave

    @asynccontextmanager
    async def _call(self, method: str, context: Context) -> AsyncIterator[None]:
        tracing, header_of = self._metrics.tracing, _text_header(context)
        request_id = take_or_make(header_of(HEADER))
        current_request_id.set(request_id)  # each call runs in a task, so a context, of its own
        async with status_on_error(context):
            with (
                self._metrics.in_progress("grpc"),
                tracing.request("grpc", header_of) as span,
                self._outcome(method, context, span),
            ):
                await send_metadata(context, (HEADER, request_id))
                yield

    @contextmanager
    def _outcome(self, method: str, context: Context, span: RequestSpan) -> Iterator[None]:
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
            log.log(_level(method, code), "request", extra={"fields": fields})
            span.describe(method, fields)


@asynccontextmanager
async def _no_guard(context: Context) -> AsyncIterator[None]:
    yield


class _OtherMethods(grpc.GenericRpcHandler):  # type: ignore[type-arg]  # only in the stubs it takes some
    """grpc's own refusal of a method has no code, and nobody counts it."""

    def __init__(self, handler_of: Callable[[str], grpc.RpcMethodHandler[Any, Any]]) -> None:
        self._handler_of = handler_of

    def service(
        self, handler_call_details: grpc.HandlerCallDetails
    ) -> grpc.RpcMethodHandler[Any, Any]:
        return self._handler_of(handler_call_details.method)


def _why_cancelled(context: Context) -> type[LLNError]:
    """grpc cancels a call at its deadline, too, and may do so before the engine has. A client that
    hangs up at its deadline is often heard of shortly before that is over here."""
    remaining: float | None = context.time_remaining()
    if remaining is None or remaining > _ON_THE_WAY_S:
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
        "peer": _address(context.peer()),
    }
    return {name: value for name, value in fields.items() if value is not None}


def _address(peer: str) -> str:
    """Of `ipv4:10.0.0.7:4711` or `ipv6:%5B::1%5D:4711`, without the port."""
    _, _, address = unquote(peer).partition(":")
    return address.rpartition(":")[0].strip("[]")


def _with_decoded_request(behaviour: Behaviour) -> Behaviour:
    """Streams of requests are decoded one by one by who reads them: one may be bad alone."""

    def behave(request: Message | Undecodable, context: Context) -> Awaitable[Any]:
        answer: Awaitable[Any] = behaviour(decoded(request), context)
        return answer

    return behave


def _level(method: str, code: str) -> int:
    """Probes come every few seconds, and are of interest when they fail."""
    return logging.DEBUG if method in _QUIET and code == OK else logging.INFO


def _method_name(method: MethodDescriptor) -> str:
    return f"{method.containing_service.full_name}/{method.name}"


def _service_of(name: str) -> str:
    """Of a name as callers write it, `/package.Service/Method`."""
    return name.removeprefix("/").rpartition("/")[0]


def _decoder(message: type[MessageT], max_bytes: int) -> Callable[[bytes], MessageT | Undecodable]:
    def decode(data: bytes) -> MessageT | Undecodable:
        if len(data) > max_bytes:
            return Undecodable(_too_large(len(data), max_bytes))
        try:
            return message.FromString(data)
        except DecodeError as error:
            name = message.DESCRIPTOR.name
            return Undecodable(
                UnreadableBody(
                    f"the request is not a readable {name}: {error}",
                    code="invalid_message",
                )
            )

    return decode


def _too_large(size: int, max_bytes: int) -> BodyTooLarge:
    return BodyTooLarge(
        f"the message has {size} bytes, and {max_bytes} are allowed", limit=max_bytes, actual=size
    )


def _text_header(context: Context) -> Callable[[str], str | None]:
    """Reads the first header of a name, as over HTTP."""
    metadata = dict(reversed(tuple(context.invocation_metadata() or ())))

    def get(name: str) -> str | None:
        value = metadata.get(name)
        return value if isinstance(value, str) else None  # bytes are for names in -bin

    return get
