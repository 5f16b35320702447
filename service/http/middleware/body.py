"""Reads request bodies within their limits and cancels the handler when the caller disconnects."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any, TypeVar

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from engine.errors import RequestCancelled, shown
from service.body_budget import LARGE_BODY_BYTES, SHORT_BODY_BYTES, BodyBudget
from service.errors import BodyTimeout, BodyTooLarge, UnsupportedMediaType
from service.http.media_types import MULTIPART, PLAIN_TEXT, media_type
from service.http.middleware.observe import HAS_LEFT

T = TypeVar("T")

_LOOK_EVERY_S = 0.5

_MAY_LAG_S = 5.0
"""How far a body may fall behind while others wait for its room."""


class BodyMiddleware:
    """Reads the whole body before the handler runs, up to a size and within a time.

    A body that is not short waits, unread, until its memory fits beside that of the others. A body
    of plain text is a document, which its handler reads as it arrives and bounds by its number of
    tokens.
    """

    def __init__(
        self, app: ASGIApp, max_body_bytes: int, body_timeout_s: float, budget: BodyBudget
    ) -> None:
        self._app = app
        self._max_body_bytes = max_body_bytes
        self._body_timeout_s = body_timeout_s
        self._budget = budget

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        caller, headers = _Caller(receive, send), Headers(scope=scope)
        _refuse_encoded(headers)
        async with AsyncExitStack() as held:
            if media_type(headers) == PLAIN_TEXT:
                count = held.enter_context(self._budget.hold_pieces())
                body = _counted(caller.receive, count)
            elif media_type(headers) == MULTIPART:
                body = caller.receive  # a file, which its handler writes to the disk and bounds
            else:
                size = self._largest_size(headers)
                has_left = scope.get("state", {}).get(HAS_LEFT, lambda: False)
                body = _replay(await self._read(caller.receive, size, held, has_left), caller)
            async with caller.cancels_on_disconnect():
                await self._app(scope, body, caller.send)

    def _largest_size(self, headers: Headers) -> int:
        """Refuses a body by its announced length, before the caller has to send it."""
        announced = headers.get("content-length", "")
        size = int(announced) if announced.isdecimal() else self._max_body_bytes
        if size > self._max_body_bytes:
            raise self._too_large(size)
        return size

    async def _read(
        self,
        receive: Receive,
        largest_size: int,
        held: AsyncExitStack,
        has_left: Callable[[], bool],
    ) -> bytes:
        body = bytearray()
        if not await self._read_in_time(receive, body, SHORT_BODY_BYTES):
            holding = held.enter_async_context(self._budget.hold(largest_size))
            memory = await _unless(has_left, holding)
            on_pace = self._on_pace(receive, body, largest_size)
            await self._read_in_time(on_pace, body, self._max_body_bytes)
            memory.resize(len(body))
        return bytes(body)

    async def _read_in_time(self, receive: Receive, body: bytearray, enough: int) -> bool:
        """Reads more of the body, until there is more than enough; returns whether it is complete.

        Without a time limit, a caller that sends a byte a minute would hold its place for ever.
        """
        try:
            async with asyncio.timeout(self._body_timeout_s):
                while len(body) <= enough:
                    message = await receive()
                    body += message.get("body", b"")
                    if len(body) > self._max_body_bytes:
                        raise self._too_large(len(body))
                    if not message.get("more_body", False):
                        return True
                    if len(body) > LARGE_BODY_BYTES:
                        await self._budget.pace(len(message.get("body", b"")))
                return False
        except TimeoutError:
            raise BodyTimeout(
                f"the request body did not arrive within {self._body_timeout_s:g} s",
                limit=self._body_timeout_s,
            ) from None

    def _on_pace(self, receive: Receive, body: bytearray, size: int) -> Receive:
        """A receive that refuses a body which falls behind while others wait for its room: callers
        that announce much and send little would keep them out until the time is over."""
        began_at = time.monotonic()

        def check() -> None:
            due_s = time.monotonic() - began_at - _MAY_LAG_S
            expected = int(size * due_s / self._body_timeout_s)
            if len(body) < expected and self._budget.is_wanted(size):
                raise self._budget.refuse_pace(len(body), expected, self._body_timeout_s)

        async def receive_on_pace() -> Message:
            while True:
                check()
                with suppress(TimeoutError):
                    async with asyncio.timeout(_LOOK_EVERY_S):
                        return await receive()

        return receive_on_pace

    def _too_large(self, size: int) -> BodyTooLarge:
        return BodyTooLarge(
            f"the body has at least {size} bytes; the limit is {self._max_body_bytes}",
            limit=self._max_body_bytes,
            actual=size,
        )


async def _unless(has_left: Callable[[], bool], waiting: Coroutine[Any, Any, T]) -> T:
    """Returns the result of `waiting`. Raises RequestCancelled if the caller leaves meanwhile: it
    would go unnoticed, since nothing is read."""
    task = asyncio.create_task(waiting)
    try:
        while not (await asyncio.wait([task], timeout=_LOOK_EVERY_S))[0]:
            if has_left():
                raise RequestCancelled("the caller disconnected while its body waited for room")
        return await task
    finally:
        task.cancel()


def _refuse_encoded(headers: Headers) -> None:
    encodings = headers.get("content-encoding", "identity")
    if encodings.strip().lower() not in ("", "identity"):
        raise UnsupportedMediaType(
            f"send the body uncompressed; its content-encoding is {shown(encodings)}",
            code="unsupported_encoding",
            param="content-encoding",
            limit="identity",
            actual=encodings,
        )


class _Caller:
    """The other end of the connection. Notices a disconnect once the request is complete."""

    def __init__(self, receive: Receive, send: Send) -> None:
        self._receive = receive
        self._send = send
        self._answered = False
        self._request_complete = asyncio.Event()
        self.disconnected = asyncio.Event()

    async def receive(self) -> Message:
        """The next part of the body."""
        message = await self._receive()
        if message["type"] == "http.disconnect":
            raise RequestCancelled("the caller disconnected while sending the request")
        if not message.get("more_body", False):
            self._request_complete.set()
        return message

    async def send(self, message: Message) -> None:
        last = message["type"] == "http.response.body" and not message.get("more_body", False)
        self._answered = self._answered or last
        await self._send(message)

    @asynccontextmanager
    async def cancels_on_disconnect(self) -> AsyncIterator[None]:
        """Cancels the work inside if the caller disconnects. Raises RequestCancelled then."""
        handler = asyncio.current_task()
        assert handler is not None  # we are in a coroutine
        watcher = asyncio.create_task(self._watch(handler))
        try:
            yield
        except asyncio.CancelledError:
            if not self.disconnected.is_set() or handler.uncancel() > 0:
                raise
            raise RequestCancelled("the caller disconnected before the answer was ready") from None
        finally:
            watcher.cancel()

    async def _watch(self, handler: asyncio.Task[object]) -> None:
        await self._request_complete.wait()
        await self._receive()  # only the disconnect is left to come
        if not self._answered:
            self.disconnected.set()
            handler.cancel()


def _counted(receive: Receive, count: Callable[[int], None]) -> Receive:
    """A receive that counts the bytes of each message."""

    async def receive_and_count() -> Message:
        message = await receive()
        count(len(message.get("body", b"")))
        return message

    return receive_and_count


def _replay(body: bytes, caller: _Caller) -> Receive:
    """A receive that returns the body once and then waits for the caller to disconnect."""
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Message:
        if messages:
            return messages.pop()
        await caller.disconnected.wait()
        return {"type": "http.disconnect"}

    return receive
