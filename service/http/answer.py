"""An answer of uvicorn's, also to callers of HTTP/1.0 and to those that do not read it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, cast

from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from service.fairness import write_timeout

if TYPE_CHECKING:
    from uvicorn._types import ASGISendEvent

_OPENING = b"HTTP/1.1 "
"""What every answer begins with."""

_UNTIL_CLOSED = 2**62
"""More bytes than any body has."""

_PIECE_BYTES = 65_536


class Answer(RequestResponseCycle):
    """uvicorn accepts a whole body at once and buffers what the caller does not read. Here the next
    piece of a large body is written once the caller has read those before.

    Callers of HTTP/1.0 know no chunks: a body whose length is not stated ends with their
    connection."""

    def __init__(self, *, read_within_s: float, **options: Any) -> None:
        super().__init__(**options)
        self._read_within_s = read_within_s
        self._ahead: _WithoutStart | None = None
        self._is_closed_at_end = False

    @property
    def num_ahead(self) -> int:
        """Bytes of the answer that were sent before there was one. Only the last of a connection
        has such."""
        return self._ahead.num_bytes if self._ahead else 0

    def send_ahead(self) -> None:
        """Sends the next byte of any answer, and none after the last that all have in common."""
        if self._ahead is None:
            self._ahead = _WithoutStart(self.transport)
            self.transport = cast("asyncio.Transport", self._ahead)
        self._ahead.send_start(_OPENING)

    async def send(self, message: ASGISendEvent) -> None:
        """Raises AnswerNotTaken if the caller does not read in time: a body that is sent as one
        message, or the next message of one that comes in several, such as a file."""
        whole = cast("dict[str, Any]", message)
        if len(whole.get("body", b"")) <= _PIECE_BYTES and not self.flow.write_paused:
            await self._send(whole)
            return
        async with write_timeout(self._read_within_s):
            for piece in _pieces(whole):
                await self._send(piece)

    async def _send(self, message: dict[str, Any]) -> None:
        if self.scope["http_version"] == "1.0":
            message = await self._without_chunks(message)
        await super().send(cast("ASGISendEvent", message))

    async def _without_chunks(self, message: dict[str, Any]) -> dict[str, Any]:
        if message["type"] == "http.response.start":
            names = {name.lower() for name, _ in message.get("headers", ())}
            self._is_closed_at_end = b"content-length" not in names
            if self._is_closed_at_end:
                self.chunked_encoding, self.expected_content_length = False, _UNTIL_CLOSED
        elif self._is_closed_at_end and not message.get("more_body", False):
            await super().send(cast("ASGISendEvent", {**message, "more_body": True}))
            self.expected_content_length = 0
            return {"type": "http.response.body", "body": b"", "more_body": False}
        return message


def _pieces(message: dict[str, Any]) -> Iterator[dict[str, Any]]:
    body: bytes = message.get("body", b"")
    if len(body) <= _PIECE_BYTES:
        yield message
        return
    for start in range(0, len(body), _PIECE_BYTES):
        yield {**message, "body": body[start : start + _PIECE_BYTES], "more_body": True}
    yield {**message, "body": b""}  # sent once the others have left


class _WithoutStart:
    """A connection that has sent the start of what is written to it next."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self.num_bytes = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def send_start(self, start: bytes) -> None:
        byte = start[self.num_bytes : self.num_bytes + 1]
        self.num_bytes += len(byte)
        self._transport.write(byte)

    def write(self, content: bytes) -> None:
        rest, self.num_bytes = content[self.num_bytes :], 0
        self._transport.write(rest)
