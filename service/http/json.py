"""JSON in and out, on orjson, without holding up the event loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Any

import orjson
from fastapi import Request
from fastapi.routing import APIRoute
from starlette.responses import Response

from service.errors import UnreadableBody, UnsupportedMediaType
from service.http.incoming import media_type

_OPTIONS = orjson.OPT_SERIALIZE_NUMPY

# orjson holds the interpreter's lock, so a thread would not keep the loop free; giving way does.
_TURN_S = 0.004


class JsonRoute(APIRoute):
    """A route whose body is JSON: unreadable bodies become typed errors before FastAPI looks."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()
        if self.body_field is None:
            return handle

        async def handle_json(request: Request) -> Response:
            _require_json(request)
            return await handle(_ParsedRequest(request, _parse(await request.body())))

        return handle_json


class _ParsedRequest(Request):
    """A request whose JSON has been read already."""

    def __init__(self, request: Request, document: Any) -> None:
        super().__init__(request.scope, request.receive)
        self._body = b"parsed"  # FastAPI asks only whether there is one
        self._document = document

    async def json(self) -> Any:
        return self._document


def _require_json(request: Request) -> None:
    declared = media_type(request.headers)
    if declared != "application/json":
        raise UnsupportedMediaType(
            f"the body must be sent as application/json, got {declared or 'no content-type'}",
            param="content-type",
            limit="application/json",
            actual=declared,
        )


def _parse(body: bytes) -> Any:
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise _unreadable(body, error) from error


def _unreadable(body: bytes, error: orjson.JSONDecodeError) -> UnreadableBody:
    try:
        body.decode()
    except UnicodeDecodeError as broken:
        message = f"the body is not UTF-8: byte {body[broken.start]:#04x} at {broken.start}"
        return UnreadableBody(message, code="invalid_utf8", actual=broken.start)
    if "surrogate" in error.msg:
        message = f"the body has half of a surrogate pair at character {error.pos}"
        return UnreadableBody(message, code="invalid_unicode", actual=error.pos)
    return UnreadableBody(f"the body is not JSON: {error}", actual=error.pos)


def json_response(
    document: Any, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """An answer of a few values; long lists go through `dump_list` first."""
    body = orjson.dumps(document, option=_OPTIONS)
    return Response(body, status, headers, media_type="application/json")


async def dump_list(items: Iterable[Any]) -> orjson.Fragment:
    """A JSON list, made a few milliseconds at a time with the loop free in between."""
    pieces: list[bytes] = []
    turn_ends = time.perf_counter() + _TURN_S
    for item in items:
        pieces.append(orjson.dumps(item, option=_OPTIONS))
        if time.perf_counter() > turn_ends:
            await asyncio.sleep(0)
            turn_ends = time.perf_counter() + _TURN_S
    return orjson.Fragment(b"[" + b",".join(pieces) + b"]")
