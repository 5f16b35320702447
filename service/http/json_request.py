"""JSON request bodies: small ones are parsed on the event loop, large ones in another process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar, TypeAlias

from fastapi import Request
from fastapi.routing import APIRoute
from starlette.responses import Response

from engine.errors import shown
from engine.scheduling.deadline import Deadline
from service.body_budget import LARGE_BODY_BYTES
from service.deadlines import TIMEOUT_HEADER, effective_timeout_s, parse_timeout_header
from service.errors import InvalidField, UnreadableBody
from service.http.json_handler import JsonHandler
from service.http.media_types import require_json
from service.large_json import NOT_QUICKLY, Unreadable, read_large_json, read_quickly
from service.reader_process import ReaderProcess
from service.repeated_fields import RepeatedField

Handle: TypeAlias = Callable[[Request], Coroutine[Any, Any, Response]]


class JsonRoute(APIRoute):
    """A route with a JSON body. Unreadable bodies raise typed errors before any handler is called.

    Where vendors have different requests for one path, the body decides whose handler answers.
    """

    undeclared_types: ClassVar[Collection[str]] = ("",)
    """Content types that are read as JSON where no browser sent the request."""

    other_types: ClassVar[Sequence[str]] = ()
    """What another route of the same path takes."""

    def get_route_handler(self) -> Handle:
        if self.body_field is None:
            return super().get_route_handler()
        own = self.json_handler()
        needs_body = self.body_field.field_info.is_required()

        async def handle_json(request: Request) -> Response:
            if not needs_body and not await request.body():
                return await own(request, None)
            require_json(request.headers, undeclared=self.undeclared_types, others=self.other_types)
            body = await request.body()
            num_bytes = len(body)
            document = await _parse_in_time(request, body)
            request._body = body = b""  # its memory is not needed beside the document's
            handler = self.choose(request, document) or own
            return await handler(request, document, num_bytes)

        return handle_json

    def json_handler(self) -> JsonHandler:
        """The handler of requests whose body is parsed."""
        return JsonHandler(self.dependant)

    def choose(self, request: Request, document: Any) -> JsonHandler | None:
        """The handler of another vendor's request for this path, if it is one."""
        handler: JsonHandler | None = request.app.state.dialects.handler_for(self.path, document)
        return handler


async def _parse_in_time(request: Request, body: bytes) -> Any:
    """Large bodies wait for each other, up to the request's deadline."""
    parser: JsonParser = request.app.state.json_parser
    if len(body) < LARGE_BODY_BYTES:
        return await parser.parse(body)
    limit_s: float = request.app.state.settings.request_timeout_s
    requested_s = parse_timeout_header(request.headers.get(TIMEOUT_HEADER))
    timeout_s = effective_timeout_s(requested_s, limit_s)
    async with Deadline(timeout_s).over():
        return await parser.parse(body)


class JsonParser:
    """Parses small bodies here. Large ones, and those of very many lists, are parsed in a process
    that starts with the first of them."""

    def __init__(self) -> None:
        self._process = ReaderProcess()
        # One thread makes calls exclusive. A caller that stops waiting does not disturb the next:
        # the thread finishes the exchange with the process first.
        self._thread: ThreadPoolExecutor | None = None
        # Others wait here, not in the thread's queue, which keeps the bodies of callers that left.
        self._is_free = asyncio.Semaphore()

    async def parse(self, body: bytes) -> Any:
        """The document. Raises UnreadableBody, or InvalidField for one that is there twice."""
        document = read_quickly(body) if len(body) < LARGE_BODY_BYTES else NOT_QUICKLY
        if document is NOT_QUICKLY:
            await self._is_free.acquire()
            document = await asyncio.shield(self._parse_elsewhere(body))
        if isinstance(document, Unreadable):
            raise UnreadableBody(
                document.message,
                code=document.code,
                limit=document.limit,
                actual=document.position,
            )
        if isinstance(document, RepeatedField):
            raise InvalidField(
                f"{shown(document.path)} is in the body more than once, again at byte "
                f"{document.position}",
                code="repeated_field",
                param=document.path,
                actual=document.position,
            )
        return document

    def _parse_elsewhere(self, body: bytes) -> asyncio.Future[Any]:
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "json-parser")
        loop = asyncio.get_running_loop()
        parsed = loop.run_in_executor(self._thread, self._process.read, read_large_json, body)
        parsed.add_done_callback(self._let_next)
        return parsed

    def _let_next(self, parsed: asyncio.Future[Any]) -> None:
        self._is_free.release()
        if not parsed.cancelled():
            parsed.exception()  # seen, though its caller may have left

    def close(self) -> None:
        if self._thread is not None:
            self._process.kill()  # nobody waits for what it still parses
            self._thread.shutdown(wait=False, cancel_futures=True)
            self._process, self._thread = ReaderProcess(), None
