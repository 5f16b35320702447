"""Large answers, encoded part by part: one of a million tokens, built and encoded in one go, would
hold up the event loop for seconds."""

from __future__ import annotations

from collections.abc import Iterable
from io import BytesIO

from google.protobuf.message import Message

from service.fairness import cooperatively


async def encoded(parts: Iterable[Message]) -> bytes:
    """The encoding of the message that these make together, each merged into those before: protobuf
    reads encodings that follow each other as one message."""
    written = BytesIO()
    async for part in cooperatively(parts):
        written.write(part.SerializeToString())
    return written.getvalue()
