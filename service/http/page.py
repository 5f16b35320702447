"""GET /: the page, its styles and its modules, as they lie in service/page."""

from __future__ import annotations

import hashlib
from importlib import resources
from typing import NamedTuple

from fastapi import APIRouter, Request
from starlette.responses import Response

from engine.errors import ResourceNotFound, shown

router = APIRouter(include_in_schema=False)

_MEDIA_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
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
    # Always asked for anew, and answered in a few bytes while it is the same.
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
            f"the page has no part {shown(name)!r}", code="route_not_found", actual=name
        )
    return _answer(found, request)


def _answer(found: _Asset, request: Request) -> Response:
    headers = _HEADERS | {"etag": found.etag}
    known = {tag.strip() for tag in request.headers.get("if-none-match", "").split(",")}
    if found.etag in known:
        return Response(status_code=304, headers=headers)
    return Response(found.body, headers=headers, media_type=found.media_type)
