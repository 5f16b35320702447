"""Takes a document in pieces, as they arrive, and embeds it when it has ended."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from time import perf_counter
from typing import Generic, TypeVar

from engine.errors import InvalidInput
from engine.execution.documents import DocumentReader
from engine.execution.inputs import PreparedText
from engine.execution.tokenizer_pool import TokenizerPool
from engine.scheduling.deadline import Deadline
from engine.steps import one_step
from engine.text.streaming import READ_CHARACTERS
from engine.text.unicode import Utf8Reader, check_unicode

T = TypeVar("T")
Found = TypeVar("Found", covariant=True)

READ_BYTES = READ_CHARACTERS
"""Bytes of a stream tokenised in one go. Handing over smaller pieces would take longer than reading
them, and larger ones would hide for too long that the caller has left."""


class DocumentStream(Generic[Found]):
    """Takes the pieces of one document, then returns its embedding, or its chunks alone.

    Pieces are strings or bytes of UTF-8, cut anywhere. They are tokenised as they arrive, off the
    event loop. Await each call before the next. An error or `abort` closes the document.
    """

    def __init__(
        self,
        reader: DocumentReader,
        run: Callable[[PreparedText, Deadline], Awaitable[Found]],
        deadline: Deadline,
        counting_rejections: Callable[[], AbstractContextManager[None]],
        pool: TokenizerPool,
        on_tokenised: Callable[[int, float], None],
    ) -> None:
        """`on_tokenised` is called once, with the tokens of the whole document and the seconds that
        its pieces took."""
        self._reader: DocumentReader | None = reader
        self._run = run
        self._pool = pool
        self._on_tokenised = on_tokenised
        self._seconds = 0.0
        self._deadline = deadline
        self._counting_rejections = counting_rejections
        self._utf8 = Utf8Reader()
        self._gathered = bytearray()
        self._prepared: PreparedText | None = None  # once it has ended

    @property
    def tokens(self) -> int:
        """Tokens read so far; 0 once the document is closed."""
        return 0 if self._reader is None else self._reader.num_tokens

    async def feed(self, piece: bytes | str) -> None:
        """Add a piece. Raises as soon as the document is known to be refused."""
        with self._reading() as reader:
            if isinstance(piece, str):
                check_unicode(piece, "the piece", param="text")
                piece = piece.encode()
            # A large piece is not copied as a whole: that would hold up others.
            for start in range(0, len(piece), READ_BYTES):
                self._gathered += piece[start : start + READ_BYTES]
                if len(self._gathered) >= READ_BYTES:
                    await self._read(reader)

    async def end(self) -> None:
        """Read what is left, without embedding it. `tokens` is then final, and the document is
        known to be accepted."""
        with self._reading() as reader:
            await self._read(reader)
            self._utf8.finish()
            self._prepared = await self._in_pool(reader, reader.finish)
            self._on_tokenised(self._prepared.num_tokens, self._seconds)

    async def finish(self) -> Found:
        """Embed the document, and close it."""
        if self._prepared is None:
            await self.end()
        assert self._prepared is not None  # set by `end`
        prepared = self._prepared
        self.abort()
        with self._counting_rejections():
            self._deadline.check()
        return await self._run(prepared, self._deadline)

    def abort(self) -> None:
        """Close the document and free what was read of it."""
        self._reader = None
        self._prepared = None
        self._gathered.clear()

    async def _read(self, reader: DocumentReader) -> None:
        data = bytes(self._gathered)
        self._gathered.clear()
        for start in range(0, len(data), READ_BYTES):
            self._deadline.check()
            piece = data[start : start + READ_BYTES]
            await self._in_pool(reader, partial(self._tokenize, reader, piece))

    def _tokenize(self, reader: DocumentReader, data: bytes) -> None:
        reader.feed(self._utf8.read(data))

    async def _in_pool(self, reader: DocumentReader, work: Callable[[], T]) -> T:
        """Documents that were long so far are read with the long ones. All were admitted when they
        were opened: what waits of each is one piece."""
        started_at = perf_counter()
        async with self._deadline.over():
            found = await self._pool.run(
                one_step(work), characters=reader.num_characters + READ_BYTES, is_admitted=True
            )
        self._seconds += perf_counter() - started_at
        return found

    @contextmanager
    def _reading(self) -> Iterator[DocumentReader]:
        """Close the document if anything goes wrong, also if the caller leaves."""
        try:
            with self._counting_rejections():
                if self._reader is None or self._prepared is not None:
                    raise InvalidInput(
                        "the document has ended or was closed", code="document_closed"
                    )
                yield self._reader
        except BaseException:
            self.abort()
            raise
