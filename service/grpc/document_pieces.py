"""The messages of one document: the first says how to embed it, all bring pieces of its text."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator
from typing import TypeAlias

from engine.errors import EngineUnavailable
from service.errors import InvalidField
from service.grpc.calls import Undecodable, decoded
from service.grpc.listeners import Listeners
from service.pb.lln.v1 import embeddings_pb2 as pb
from service.slow_callers import arriving

DocumentPiece: TypeAlias = pb.EmbedDocumentRequest | Undecodable


class DocumentPieces:
    """Each message must arrive in so many seconds once the one before it is dealt with."""

    def __init__(
        self, requests: AsyncIterable[DocumentPiece], listeners: Listeners, max_silence_s: float
    ) -> None:
        self._requests = arriving(requests, max_silence_s)
        self._listeners = listeners
        self._first: pb.EmbedDocumentRequest | None = None

    async def opening(self) -> pb.DocumentOptions:
        """What the first message says."""
        if not await self._listeners.run(self._read_first()):
            raise EngineUnavailable("the server is stopping, and had not read the document")
        if self._first is None or not self._first.HasField("open"):
            raise InvalidField(
                "the first message of a document must have open, which may be empty",
                code="missing_field",
                param="open",
            )
        return self._first.open

    async def pieces(self) -> AsyncIterator[bytes]:
        if self._first is not None:
            yield self._first.text
        async for request in self._requests:
            message = decoded(request)
            if message.HasField("open"):
                raise InvalidField("only the first message has open", param="open")
            yield message.text

    async def _read_first(self) -> None:
        request = await anext(self._requests, None)
        self._first = None if request is None else decoded(request)
