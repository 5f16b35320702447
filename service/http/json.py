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

from service.errors import UnsupportedMediaType
from service.http.big_json import BigJson
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
            parser: BigJson = request.app.state.big_json
            document = await parser.parse(await request.body())
            return await handle(_ParsedRequest(request, document))

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
