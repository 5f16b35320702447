"""Contents of stored files, whole or by range, with errors like all others."""

from __future__ import annotations

from http import HTTPStatus

from starlette.responses import FileResponse
from starlette.types import Message, Receive, Scope, Send

from engine.errors import InvalidInput, shown
from service.errors import RangeNotSatisfiable


class ContentResponse(FileResponse):
    """The framework answers a bad `Range` in plain text: that becomes a typed error."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def checked(message: Message) -> None:
            if message["type"] == "http.response.start" and message["status"] >= 400:
                raise self._bad_range(scope, message["status"])
            await send(message)

        await super().__call__(scope, receive, checked)

    def _bad_range(self, scope: Scope, status: int) -> InvalidInput:
        given = dict(scope["headers"]).get(b"range", b"").decode("latin-1")
        num_bytes = int(self.headers["content-length"])
        if status == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            return RangeNotSatisfiable(
                f"Range {shown(given)} begins after the end of the file, which has {num_bytes} "
                "bytes",
                param="Range",
                limit=num_bytes,
                actual=given,
            )
        return InvalidInput(
            f"Range must be like bytes=0-99, got {shown(given)}",
            code="invalid_range",
            param="Range",
            actual=given,
        )
