"""GET /docs: the API as a page, drawn from /openapi.json with nothing fetched from elsewhere."""

from __future__ import annotations

from collections.abc import Collection
from importlib import resources
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import HTMLResponse, Response

from service.http.json import json_response

router = APIRouter(include_in_schema=False)

_PAGE = resources.files("service.http").joinpath("docs.html").read_text(encoding="utf-8")
_KEY_SCHEMES = {
    "bearer": {"type": "http", "scheme": "bearer", "description": "An API key of this server."},
    "x_api_key": {
        "type": "apiKey",
        "in": "header",
        "name": "X-API-Key",
        "description": "The same key, for clients that cannot send a bearer token.",
    },
}


@router.get("/docs")
async def docs() -> Response:
    return HTMLResponse(_PAGE)


@router.get("/openapi.json")
async def openapi(request: Request) -> Response:
    app = request.app
    document = app.openapi()
    if app.state.keys.required:
        document = _with_keys(document, app.state.unguarded)
    return json_response(document)


def _with_keys(document: dict[str, Any], unguarded: Collection[str]) -> dict[str, Any]:
    """A copy that says how a key is sent, and which paths ask for none."""
    paths = {
        path: _without_key(operations) if path in unguarded else operations
        for path, operations in document["paths"].items()
    }
    components = document["components"] | {"securitySchemes": _KEY_SCHEMES}
    either: list[dict[str, list[str]]] = [{name: []} for name in _KEY_SCHEMES]
    return document | {"paths": paths, "components": components, "security": either}


def _without_key(operations: dict[str, Any]) -> dict[str, Any]:
    return {verb: operation | {"security": []} for verb, operation in operations.items()}
