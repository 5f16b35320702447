"""The door: who may come in, and how many at once. Asked before a byte of the body is read."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import nullcontext

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from service.api_keys import ApiKeys
from service.http.observe import METRICS
from service.http.origins import Origins
from service.permits import Permits

UNGUARDED = frozenset({"/", "/docs", "/openapi.json", "/health", "/health/live", "/health/ready"})
"""Probes, and pages that hold nothing of anyone: no key, and no place among the requests. They are
there for every origin too: monitors and links lead to them."""


UNLIMITED = frozenset({METRICS})
"""No place among the requests either, where a key is asked for: an overloaded server is looked at
most."""


class Access:
    """Asks whence a request comes, and for a key and a permit, unless the path is left open."""

    def __init__(
        self,
        app: ASGIApp,
        origins: Origins,
        keys: ApiKeys,
        permits: Permits,
        unguarded: Collection[str],
    ) -> None:
        self._app = app
        self._origins = origins
        self._keys = keys
        self._permits = permits
        self._unguarded = frozenset(unguarded)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in self._unguarded:
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        self._origins.check(headers)
        self._keys.check(headers.get("authorization"), headers.get("x-api-key"))
        with nullcontext() if scope["path"] in UNLIMITED else self._permits.one():
            await self._app(scope, receive, send)
