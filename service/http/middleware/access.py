"""Access control before a byte of the body is read, and security headers on every answer."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import nullcontext

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.http.middleware.observe import METRICS_PATH
from service.repeated_headers import has_repeats, refuse_repeats
from service.security import ApiKeys, Origins, RequestLimit

UNGUARDED = frozenset({"/", "/docs", "/openapi.json", "/health", "/health/live", "/health/ready"})
"""Probes and public pages: no key, any origin, and no count against the request limit."""

UNLIMITED = frozenset({METRICS_PATH})
"""Never counts against the request limit: metrics matter most under overload."""

_HEADERS = {"x-content-type-options": "nosniff", "referrer-policy": "no-referrer"}

# Our pages contain their scripts and styles, and fetch from this server alone.
_HTML_HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self' 'unsafe-inline'; style-src 'self' 'unsafe-inline'; "
        "img-src 'self' data: blob:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    ),
}


class AccessMiddleware:
    """Checks the origin, the API key and the number of open requests, except on open paths."""

    def __init__(
        self,
        app: ASGIApp,
        origins: Origins,
        keys: ApiKeys,
        limit: RequestLimit,
        unguarded: Collection[str],
    ) -> None:
        self._app = app
        self._origins = origins
        self._keys = keys
        self._limit = limit
        self._unguarded = frozenset(unguarded)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in self._unguarded:
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        if has_repeats(scope["headers"]):
            refuse_repeats(headers.items())
        self._origins.check(headers)
        self._keys.check(headers.get("authorization"), headers.get("x-api-key"))
        with nullcontext() if scope["path"] in UNLIMITED else self._limit.slot():
            await self._app(scope, receive, send)


class SecurityHeadersMiddleware:
    """Adds security headers to every answer. A page's own, stricter headers stay."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(_HEADERS)
                if headers.get("content-type", "").startswith("text/html"):
                    for name, value in _HTML_HEADERS.items():
                        headers.setdefault(name, value)
            await send(message)

        await self._app(scope, receive, send_with_headers)
