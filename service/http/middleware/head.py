"""HEAD is answered like GET, without the body: probes and downloads ask so what they would get."""

from __future__ import annotations

from collections.abc import Sequence

from fastapi.routing import APIRoute
from starlette.routing import Match
from starlette.types import ASGIApp, Receive, Scope, Send


class HeadMiddleware:
    """Lets the routes see a GET. The server that wrote the scope still knows of the HEAD, and sends
    no body."""

    def __init__(self, app: ASGIApp, routes: Sequence[APIRoute]) -> None:
        self._app = app
        self._routes = routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] == "HEAD":
            as_get = {**scope, "method": "GET"}
            if any(route.matches(as_get)[0] is Match.FULL for route in self._routes):
                scope = as_get
        await self._app(scope, receive, send)
