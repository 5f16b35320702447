"""Contents of stored files, whole or by range, with errors like all others."""

from __future__ import annotations

from http import HTTPStatus
from pathlib import Path
from typing import Any

from starlette.responses import FileResponse
from starlette.types import Message, Receive, Scope, Send

from engine.errors import InvalidInput, LLNError, shown
from service.errors import RangeNotSatisfiable, StorageFailure


class ContentResponse(FileResponse):
    """The framework answers a bad `Range` in plain text, and says that all is well before it opens
    the file: both become typed errors. A file that is deleted once it is open is read to its end.
    """

    def __init__(
        self, path: Path, status_code: int = 200, *, gone: LLNError, **options: Any
    ) -> None:
        """`gone` is the error of a file that is no longer there. FastAPI reads the status of good
        answers from this signature."""
        super().__init__(path, status_code, **options)
        self._gone = gone

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        held: list[Message] = []  # the start, until the file is open
        has_begun = False

        async def checked(message: Message) -> None:
            nonlocal has_begun
            if message["type"] != "http.response.start":
                has_begun = True
                while held:
                    await send(held.pop())
                await send(message)
            elif message["status"] >= HTTPStatus.BAD_REQUEST:
                raise self._bad_range(scope, message["status"])
            else:
                held.append(message)

        try:
            await super().__call__(scope, receive, checked)
        except OSError as error:
            if has_begun:  # nothing else can be answered
                raise
            raise self._unopened(error) from error

    def _unopened(self, error: OSError) -> LLNError:
        if isinstance(error, FileNotFoundError):
            return self._gone
        return StorageFailure(f"the file cannot be read: {error.strerror}")

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
