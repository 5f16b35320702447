"""JSON in and out, on orjson, without holding up the event loop."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Any

import orjson
from fastapi import Request
from fastapi.routing import APIRoute
from starlette.responses import Response

from engine.deadline import Deadline
from engine.errors import shown
from service.errors import UnsupportedMediaType
from service.http.big_json import LARGE, BigJson
from service.http.deadlines import TIMEOUT_HEADER, caller_timeout_s
from service.http.incoming import media_type
from service.turns import in_turns

_OPTIONS = orjson.OPT_SERIALIZE_NUMPY


class JsonRoute(APIRoute):
    """A route whose body is JSON: unreadable bodies become typed errors before FastAPI looks."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()
        if self.body_field is None:
            return handle

        async def handle_json(request: Request) -> Response:
            _require_json(request)
            document = await _parsed(request, await request.body())
            return await handle(_ParsedRequest(request, document))

        return handle_json


async def _parsed(request: Request, body: bytes) -> Any:
    """Raises UnreadableBody, and DeadlineExceeded: large bodies wait for each other."""
    state = request.app.state
    parser: BigJson = state.big_json
    if len(body) < LARGE:
        return await parser.parse(body)
    limit_s: float = state.settings.request_timeout_s
    timeout_s = caller_timeout_s(request.headers.get(TIMEOUT_HEADER), limit_s)
    async with Deadline(timeout_s).over():
        return await parser.parse(body)


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
            "the body must be sent as application/json, got "
            + shown(declared or "no content-type"),
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
    pieces = [orjson.dumps(item, option=_OPTIONS) async for item in in_turns(items)]
    # Joined, not added: a sum of three would copy what is long once more.
    return orjson.Fragment(b"".join((b"[", b",".join(pieces), b"]")))
