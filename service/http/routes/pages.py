"""The pages: GET / with its styles and scripts, and GET /docs with GET /openapi.json.

The page's files lie in service/page. Nothing on either page is fetched from another server.
"""

from __future__ import annotations

import hashlib
from importlib import resources
from typing import Any, NamedTuple

from fastapi import APIRouter, Request
from starlette.responses import HTMLResponse, Response

from engine.errors import ResourceNotFound, shown
from service.http.json_response import json_response

router = APIRouter(include_in_schema=False)

_MEDIA_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_DOCS_PAGE = (
    resources.files("service.http.routes").joinpath("docs.html").read_text(encoding="utf-8")
)
_KEY_SCHEMES = {
    "bearer": {"type": "http", "scheme": "bearer", "description": "An API key of this server."},
    "x_api_key": {
        "type": "apiKey",
        "in": "header",
        "name": "X-API-Key",
        "description": "The same key, for clients that cannot send a bearer token.",
    },
}
_POLICY = "; ".join(
    [
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    ]
)
_HEADERS = {
    # Browsers ask again each time; while the file is unchanged the answer is an empty 304.
    "cache-control": "no-cache",
    "content-security-policy": _POLICY,
}


class _Asset(NamedTuple):
    body: bytes
    media_type: str
    etag: str


def _read_assets() -> dict[str, _Asset]:
    assets = {}
    for file in resources.files("service").joinpath("page").iterdir():
        media_type = _MEDIA_TYPES.get("." + file.name.rpartition(".")[2])
        if media_type is not None:
            body = file.read_bytes()
            etag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
            assets[file.name] = _Asset(body, media_type, etag)
    return assets


_ASSETS = _read_assets()
PATHS = frozenset(f"/page/{name}" for name in _ASSETS)


@router.get("/")
async def page(request: Request) -> Response:
    return _answer(_ASSETS["index.html"], request)


@router.get("/page/{name}")
async def asset(name: str, request: Request) -> Response:
    found = _ASSETS.get(name)
    if found is None:
        raise ResourceNotFound(
            f"the page has no file {shown(name)!r}", code="route_not_found", actual=name
        )
    return _answer(found, request)


def _answer(found: _Asset, request: Request) -> Response:
    headers = _HEADERS | {"etag": found.etag}
    known = {tag.strip() for tag in request.headers.get("if-none-match", "").split(",")}
    if found.etag in known:
        return Response(status_code=304, headers=headers)
    return Response(found.body, headers=headers, media_type=found.media_type)


@router.get("/docs")
async def docs() -> Response:
    return HTMLResponse(_DOCS_PAGE)


@router.get("/openapi.json")
async def openapi(request: Request) -> Response:
    app = request.app
    document = app.openapi()
    if app.state.keys.required:
        document = _with_keys(document, app.state.unguarded)
    return json_response(document)


def _with_keys(document: dict[str, Any], unguarded: frozenset[str]) -> dict[str, Any]:
    """A copy that documents how to send a key, and which paths need none."""
    paths = dict(document["paths"])
    for path in unguarded & paths.keys():
        paths[path] = {verb: spec | {"security": []} for verb, spec in paths[path].items()}
    components = document["components"] | {"securitySchemes": _KEY_SCHEMES}
    either: list[dict[str, list[str]]] = [{name: []} for name in _KEY_SCHEMES]
    return document | {"paths": paths, "components": components, "security": either}
