"""A document that its caller sends piece by piece."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TypeAlias

from engine.deadline import Deadline
from engine.errors import InvalidInput
from engine.prepare import Prepared
from engine.reader import DocumentReader
from engine.text.utf8 import Utf8Reader
from engine.types import DocumentEmbedding

READ_BYTES = 262_144
"""Pieces gathered before they are tokenised, and the most that is tokenised in one go: small ones
would cost more to hand over than to read, and a departed caller is noticed in between."""

RunDocument: TypeAlias = Callable[[Prepared, Deadline], Awaitable[DocumentEmbedding]]


class DocumentStream:
    """Takes the pieces of one document, then answers with its embedding.

    Pieces are bytes of UTF-8 or strings, cut anywhere; they are tokenised as they come, off the
    event loop. Calls follow one another. After an error, or `abort`, the document is given up.
    """

    def __init__(
        self,
        reader: DocumentReader,
        run: RunDocument,
        deadline: Deadline,
        counting_rejections: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self._reader: DocumentReader | None = reader
        self._run = run
        self._deadline = deadline
        self._counting_rejections = counting_rejections
        self._utf8 = Utf8Reader()
        self._gathered = bytearray()
        self._prepared: Prepared | None = None  # once it has ended

    @property
    def tokens(self) -> int:
        """Of what has been read so far; 0 once the document is given up."""
        return 0 if self._reader is None else self._reader.num_tokens

    async def feed(self, piece: bytes | str) -> None:
        """Take a piece. Raises as soon as the document is known to be refused."""
        with self._reading() as reader:
            self._gathered += piece if isinstance(piece, bytes) else _encoded(piece)
            if len(self._gathered) >= READ_BYTES:
                await self._read(reader)

    async def end(self) -> None:
        """Say that there are no more pieces. `tokens` is then final, and what chunking or the
        text's length forbid has been raised."""
        with self._reading() as reader:
            await self._read(reader)
            self._utf8.finish()
            async with self._deadline.over():
                self._prepared = await asyncio.to_thread(reader.finish)

    async def finish(self) -> DocumentEmbedding:
        """Embed what was fed. Afterwards nothing more can be."""
        if self._prepared is None:
            await self.end()
        assert self._prepared is not None  # set by `end`
        prepared = self._prepared
        self.abort()
        with self._counting_rejections():
            self._deadline.check()
        return await self._run(prepared, self._deadline)

    def abort(self) -> None:
        """Give the document up and let go of what was read of it."""
        self._reader = None
        self._prepared = None
        self._gathered.clear()

    async def _read(self, reader: DocumentReader) -> None:
        data = bytes(self._gathered)
        self._gathered.clear()
        for start in range(0, len(data), READ_BYTES):
            self._deadline.check()
            async with self._deadline.over():
                await asyncio.to_thread(self._tokenize, reader, data[start : start + READ_BYTES])

    def _tokenize(self, reader: DocumentReader, data: bytes) -> None:
        reader.feed(self._utf8.read(data))

    @contextmanager
    def _reading(self) -> Iterator[DocumentReader]:
        """Gives the document up if anything goes wrong, also if the caller leaves."""
        try:
            with self._counting_rejections():
                if self._reader is None or self._prepared is not None:
                    raise InvalidInput(
                        "the document has ended or was given up", code="document_closed"
                    )
                yield self._reader
        except BaseException:
            self.abort()
            raise


def _encoded(piece: str) -> bytes:
    try:
        return piece.encode()
    except UnicodeEncodeError as error:
        raise InvalidInput(
            f"the piece has a lone surrogate at character {error.start}",
            code="invalid_unicode",
            param="text",
            actual=f"U+{ord(piece[error.start]):04X}",
        ) from None
