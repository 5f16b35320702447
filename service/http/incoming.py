"""The way in: a request's body, never more of it than is allowed, then an ear on its caller."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from engine.errors import RequestCancelled, shown
from service.errors import BodyTimeout, BodyTooLarge, UnsupportedMediaType
from service.http.media_types import read_media_type

STREAMED = "text/plain"
"""The media type of a body that is read as it comes."""

_CHARSETS = ("utf-8", "utf8", "us-ascii", "ascii")


def media_type(headers: Headers) -> str:
    """What the body is declared to be, without parameters."""
    return read_media_type(headers.get("content-type", "")).name


def refuse_other_charsets(headers: Headers) -> None:
    """For bodies of text: those of another charset may decode all the same, into another text."""
    declared = read_media_type(headers.get("content-type", "")).parameters.get("charset", "utf-8")
    if declared.lower() not in _CHARSETS:
        raise UnsupportedMediaType(
            f"text must be sent as utf-8, and content-type says charset={shown(declared)}",
            code="unsupported_charset",
            param="content-type",
            limit="utf-8",
            actual=declared,
        )


class Incoming:
    """Reads the whole body within the limit, and cancels the handler when its caller leaves.

    Plain text is a document that is read as it comes: how much of it there may be is a question of
    its tokens, and for its handler.
    """

    def __init__(self, app: ASGIApp, max_body_bytes: int, body_timeout_s: float) -> None:
        self._app = app
        self._max_body_bytes = max_body_bytes
        self._body_timeout_s = body_timeout_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        caller, headers = _Caller(receive, send), Headers(scope=scope)
        _refuse_encoded(headers)
        if media_type(headers) == STREAMED:
            body: Receive = caller.receive
        else:
            self._refuse_announced(headers)
            body = _replay(await self._read_in_time(caller.receive), caller)
        async with caller.cancels_when_gone():
            await self._app(scope, body, caller.send)

    def _refuse_announced(self, headers: Headers) -> None:
        """Refuses by the announced length, so that the body need not be sent at all."""
        announced = headers.get("content-length", "")
        if announced.isdecimal() and int(announced) > self._max_body_bytes:
            raise self._too_large(int(announced))

    async def _read_in_time(self, receive: Receive) -> bytes:
        """A caller who sends a byte a minute would hold a place for ever."""
        try:
            async with asyncio.timeout(self._body_timeout_s):
                return await self._read(receive)
        except TimeoutError:
            raise BodyTimeout(
                f"the request did not arrive in {self._body_timeout_s:g} s",
                limit=self._body_timeout_s,
            ) from None

    async def _read(self, receive: Receive) -> bytes:
        body = bytearray()
        while True:
            message = await receive()
            body += message.get("body", b"")
            if len(body) > self._max_body_bytes:
                raise self._too_large(len(body))
            if not message.get("more_body", False):
                return bytes(body)

    def _too_large(self, size: int) -> BodyTooLarge:
        return BodyTooLarge(
            f"the body has {size} bytes or more, and {self._max_body_bytes} are allowed",
            limit=self._max_body_bytes,
            actual=size,
        )


def _refuse_encoded(headers: Headers) -> None:
    encodings = headers.get("content-encoding", "identity")
    if encodings.strip().lower() not in ("", "identity"):
        raise UnsupportedMediaType(
            f"the body must be sent as it is, and content-encoding says {shown(encodings)}",
            code="unsupported_encoding",
            param="content-encoding",
            limit="identity",
            actual=encodings,
        )


class _Caller:
    """The other end of the connection: what it says, and whether it is still there after that."""

    def __init__(self, receive: Receive, send: Send) -> None:
        self._receive = receive
        self._send = send
        self._answered = False
        self._has_said_all = asyncio.Event()
        self.gone = asyncio.Event()

    async def receive(self) -> Message:
        """The next part of the body."""
        message = await self._receive()
        if message["type"] == "http.disconnect":
            raise RequestCancelled("the caller left while sending the request")
        if not message.get("more_body", False):
            self._has_said_all.set()
        return message

    async def send(self, message: Message) -> None:
        last = message["type"] == "http.response.body" and not message.get("more_body", False)
        self._answered = self._answered or last
        await self._send(message)

    async def _watch(self, handler: asyncio.Task[object]) -> None:
        await self._has_said_all.wait()
        await self._receive()  # all that can come now is the disconnect
        if not self._answered:
            self.gone.set()
            handler.cancel()

    @asynccontextmanager
    async def cancels_when_gone(self) -> AsyncIterator[None]:
        handler = asyncio.current_task()
        assert handler is not None  # we are in a coroutine
        watcher = asyncio.create_task(self._watch(handler))
        try:
            yield
        except asyncio.CancelledError:
            if not self.gone.is_set() or handler.uncancel() > 0:
                raise
            raise RequestCancelled("the caller left before the answer was ready") from None
        finally:
            watcher.cancel()


def _replay(body: bytes, caller: _Caller) -> Receive:
    """A receive that gives the body once and then waits for the caller to leave."""
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Message:
        if messages:
            return messages.pop()
        await caller.gone.wait()
        return {"type": "http.disconnect"}

    return receive
