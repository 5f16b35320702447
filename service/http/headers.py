"""Headers that tell browsers to trust an answer with no more than it needs."""

from __future__ import annotations

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_ALWAYS = {"x-content-type-options": "nosniff", "referrer-policy": "no-referrer"}

# Our pages carry their scripts and styles within them, and fetch from this server alone.
_PAGES = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self' 'unsafe-inline'; style-src 'self' 'unsafe-inline'; "
        "img-src 'self' data: blob:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    ),
}


class SecurityHeaders:
    """Adds them to every answer, and to pages what only pages need."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(_ALWAYS)
                if headers.get("content-type", "").startswith("text/html"):
                    headers.update(_PAGES)
            await send(message)

        await self._app(scope, receive, send_with_headers)
