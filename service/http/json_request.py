"""JSON request bodies: small ones are parsed on the event loop, large ones in another process.

A parser holds the interpreter's lock while it works: half a second for five million token ids, in
which no other request, probe or stream moves. A thread would not help. Unpickling the parsed
document is quick: token ids come back as arrays, whose bytes are copied in one piece.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import pickle
import signal
from collections.abc import Callable, Collection, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from typing import Any, ClassVar, NamedTuple, TypeAlias

import numpy as np
import orjson
from fastapi import Request
from fastapi.routing import APIRoute
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import Scope

from engine.scheduling.deadline import Deadline
from service.body_budget import LARGE_BODY_BYTES
from service.deadlines import TIMEOUT_HEADER, effective_timeout_s, parse_timeout_header
from service.errors import UnreadableBody
from service.http.media_types import JSON, media_type, require_json

_MANY_IDS = 10_000

_FIELDS_OF_IDS = frozenset({"input", "inputs", "ids", "tokens"})
"""Whoever reads one of these takes arrays too. No other field becomes one."""

_MAX_VALUES = 2_000_000
"""A large body has at most this many values, token ids in long lists aside. Each becomes an object,
of which 32 MiB of JSON can hold millions."""

_NOT_PARSED = b""
"""The process's answer for a document that it cannot pickle."""


Handle: TypeAlias = Callable[[Request], Coroutine[Any, Any, Response]]


class JsonRoute(APIRoute):
    """A route with a JSON body. Unreadable bodies raise typed errors before FastAPI sees them.

    Where vendors have different requests for one path, the body decides whose handler answers.
    """

    undeclared_types: ClassVar[Collection[str]] = ("",)
    """Content types that are read as JSON where no browser sent the request."""

    def get_route_handler(self) -> Handle:
        handle = self.get_parsed_handler()
        if self.body_field is None:
            return handle

        async def handle_json(request: Request) -> Response:
            require_json(request.headers, undeclared=self.undeclared_types)
            document = await _parse_in_time(request, await request.body())
            request._body = b""  # its memory is not needed beside the document's
            chosen = self.choose(request, document) or handle
            return await chosen(_ParsedRequest(request, document))

        return handle_json

    def get_parsed_handler(self) -> Handle:
        """The handler of requests whose body is parsed."""
        return super().get_route_handler()

    def choose(self, request: Request, document: Any) -> Handle | None:
        """The handler of another vendor's request for this path, if it is one."""
        handler: Handle | None = request.app.state.dialects.handler_for(self.path, document)
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


class _ParsedRequest(Request):
    """A request whose JSON is parsed already."""

    def __init__(self, request: Request, document: Any) -> None:
        super().__init__(_declared_json(request.scope), request.receive)
        self._body = b"parsed"  # FastAPI checks only whether there is a body
        self._document = document

    async def json(self) -> Any:
        return self._document


def _declared_json(scope: Scope) -> Scope:
    """FastAPI reads no JSON that is not declared as such."""
    if media_type(Headers(scope=scope)) == JSON:
        return scope
    others = [pair for pair in scope["headers"] if pair[0] != b"content-type"]
    return {**scope, "headers": [*others, (b"content-type", JSON.encode())]}


class JsonParser:
    """Parses small bodies here and large ones in a process that starts with the first of them."""

    def __init__(self) -> None:
        self._process = _ParserProcess()
        # One thread makes calls exclusive. A caller that stops waiting does not disturb the next:
        # the thread finishes the exchange with the process first.
        self._thread: ThreadPoolExecutor | None = None
        # Others wait here, not in the thread's queue, which keeps the bodies of callers that left.
        self._is_free = asyncio.Semaphore()

    async def parse(self, body: bytes) -> Any:
        """The document. Raises UnreadableBody."""
        if len(body) < LARGE_BODY_BYTES:
            document = _parse(body)
        else:
            await self._is_free.acquire()
            document = await asyncio.shield(self._parse_elsewhere(body))
        if isinstance(document, _Unreadable):
            raise UnreadableBody(
                document.message,
                code=document.code,
                limit=document.limit,
                actual=document.position,
            )
        return document

    def _parse_elsewhere(self, body: bytes) -> asyncio.Future[Any]:
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "json-parser")
        loop = asyncio.get_running_loop()
        parsed = loop.run_in_executor(self._thread, self._process.parse, body)
        parsed.add_done_callback(lambda _: self._is_free.release())
        return parsed

    def close(self) -> None:
        if self._thread is not None:
            self._process.kill()  # nobody waits for what it still parses
            self._thread.shutdown(wait=False, cancel_futures=True)
            self._process, self._thread = _ParserProcess(), None


class _Unreadable(NamedTuple):
    """Why a body is unreadable: our exceptions cannot be pickled to the parent process."""

    message: str
    code: str
    position: int | None = None
    limit: int | None = None


def _parse(body: bytes) -> Any:
    """The document, or _Unreadable."""
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as error:
        return _why_unreadable(body, error)


def _why_unreadable(body: bytes, error: orjson.JSONDecodeError) -> _Unreadable:
    try:
        body.decode()
    except UnicodeDecodeError as broken:
        message = f"the body is not UTF-8: byte {body[broken.start]:#04x} at {broken.start}"
        return _Unreadable(message, "invalid_utf8", broken.start)
    if "surrogate" in error.msg:
        message = f"the body has half of a surrogate pair at character {error.pos}"
        return _Unreadable(message, "invalid_unicode", error.pos)
    return _Unreadable(f"the body is not JSON: {error}", UnreadableBody.code, error.pos)


class _ParserProcess:
    """A process that parses for one thread. It starts with the first body."""

    def __init__(self) -> None:
        self._process: SpawnProcess | None = None
        self._pipe: Connection | None = None

    def parse(self, body: bytes) -> Any:
        """The document, or _Unreadable."""
        try:
            if self._pipe is None:
                self._pipe = self._start()
            self._pipe.send_bytes(body)
            answer = self._pipe.recv_bytes()
        except (EOFError, OSError):  # the process was killed, perhaps for its memory
            self._discard()
            answer = _NOT_PARSED
        return _parse(body) if answer == _NOT_PARSED else pickle.loads(answer)

    def _start(self) -> Connection:
        # A fork would copy the threads' locks in whatever state they are.
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        # Once we close their end, only the process has it open: its death ends the pipe.
        with theirs:
            process = context.Process(target=_serve_parser, args=(theirs,), daemon=True)
            process.start()
        self._process = process
        return ours

    def kill(self) -> None:
        """Safe to call from any thread."""
        if (process := self._process) is not None:
            process.kill()

    def _discard(self) -> None:
        """Ends the process. The next body starts another."""
        if self._pipe is not None:
            self._pipe.close()
        if self._process is not None:
            self._process.kill()
            self._process.join()
        self._process = self._pipe = None


def _serve_parser(pipe: Connection) -> None:
    """Runs in the process until the parent's end of the pipe closes, at its death at the latest."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal interrupts all processes
    with suppress(EOFError, OSError):
        while True:
            pipe.send_bytes(_pickled(pipe.recv_bytes()))


def _pickled(body: bytes) -> bytes:
    try:
        document = _parse(body)
        if isinstance(document, dict):
            for name in _FIELDS_OF_IDS & document.keys():
                document[name] = _with_arrays(document[name])
        if _has_too_many_values(document):
            message = f"the body has more than {_MAX_VALUES} values"
            document = _Unreadable(message, "too_many_values", limit=_MAX_VALUES)
        return pickle.dumps(document, pickle.HIGHEST_PROTOCOL)
    except (MemoryError, RecursionError):  # pickle nests less deeply than JSON
        return _NOT_PARSED


def _has_too_many_values(document: Any) -> bool:
    count, unseen = 0, [document]
    while unseen and count <= _MAX_VALUES:
        value = unseen.pop()
        if isinstance(value, list | dict):
            count += len(value)
            if count <= _MAX_VALUES:
                unseen += value.values() if isinstance(value, dict) else value
    return count > _MAX_VALUES


def _with_arrays(value: Any) -> Any:
    """Long lists of token ids, alone or in a list of inputs, as arrays."""
    if not isinstance(value, list):
        return value
    if _are_many_ids(value):
        return np.array(value, np.int64)
    return [np.array(item, np.int64) if _are_many_ids(item) else item for item in value]


def _are_many_ids(value: Any) -> bool:
    return (
        isinstance(value, Sequence)
        and len(value) >= _MANY_IDS
        and all(type(item) is int and -(2**63) <= item < 2**63 for item in value)
    )
