"""Reads documents into token ids and late chunks, whole or as a caller sends them in pieces."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import TypeVar

from engine.errors import InvalidInput, TextTooLong
from engine.execution.input_checks import check_input
from engine.execution.inputs import PreparedText, max_tokens_of
from engine.execution.prompts import prompt_of
from engine.execution.tokenizer_pool import TokenizerPool
from engine.model.embedding_model import EmbeddingModel
from engine.scheduling.deadline import Deadline
from engine.steps import Steps, finish, one_step
from engine.text.chunking import (
    NO_SHARES,
    Source,
    check_chunking,
    chunk_spans,
    needs_content,
    shares_of,
    titled_contexts,
)
from engine.text.openings import Opening, opening_of
from engine.text.streaming import READ_CHARACTERS, read_pieces
from engine.text.titles import HEAD_CHARACTERS, is_visible, title_span
from engine.text.tokenizer import Encoded
from engine.text.truncation import TruncatingBuffer
from engine.text.unicode import Utf8Reader, check_unicode
from engine.types import Chunking, DocumentEmbedding, EmbedOptions, Ids, Span

T = TypeVar("T")

MAX_UNCUT_CHARACTERS = 4_194_304
"""Most characters of a stream in a row without a place to cut them. Each costs some hundred
bytes."""

MAX_READ_CHARACTERS = 16_777_216
"""Most characters of a stream whose chunks need the text itself, and not only its tokens."""

MAX_TITLE_TOKENS = 512
"""Longest title, prompt and special tokens included."""

READ_BYTES = READ_CHARACTERS
"""Bytes of a stream tokenised in one go. Handing over smaller pieces would take longer than reading
them, and larger ones would hide for too long that the caller has left."""


def prepare_document(
    text: str,
    model: EmbeddingModel,
    options: EmbedOptions,
    plan: Chunking | None,
    *,
    title: str | None = None,
) -> PreparedText:
    """Read one document with its late chunks. Characters count from the text, after the prompt."""
    return finish(prepare_document_steps(text, model, options, plan, title=title))


def prepare_document_steps(
    text: str,
    model: EmbeddingModel,
    options: EmbedOptions,
    plan: Chunking | None,
    *,
    title: str | None = None,
) -> Steps[PreparedText]:
    """The same in steps. A document that may not be truncated is read no further than its limit."""
    check_input(text, "text")
    reader = DocumentReader(model, options, plan, title=title)
    for piece in read_pieces(text):
        reader.feed(piece)
        yield
    return reader.finish()


def encode_behind_prompt(text: str, model: EmbeddingModel, options: EmbedOptions) -> Steps[Encoded]:
    """Encode a text as for an embedding, without truncating it. Characters count from the text
    itself; tokens of the prompt have none."""
    prompt = prompt_of(options, model)
    kept = TruncatingBuffer(
        model.tokenizer,
        max_tokens=max_tokens_of(options, model),
        policy="error",
        prompt_length=len(prompt),
    )
    stream = model.tokenizer.stream(kept.take, with_offsets=True)
    stream.feed(prompt)
    for piece in read_pieces(text):
        stream.feed(piece)
        kept.check_fits(has_ended=False)
        yield
    stream.finish()
    return kept.result().encoded


class DocumentReader:
    """Reads a document and keeps what the device and chunking need.

    A document is refused as soon as it is known to be too long. With `in_pieces`, so is one that
    would take too much memory before it ends.
    """

    def __init__(
        self,
        model: EmbeddingModel,
        options: EmbedOptions,
        plan: Chunking | None,
        *,
        title: str | None = None,
        in_pieces: bool = False,
    ) -> None:
        if plan is not None:
            check_chunking(plan)
        if title is not None:
            check_title(title, plan)
        prompt = prompt_of(options, model)
        self._model = model
        self._shares = NO_SHARES if plan is None else shares_of(plan)
        self._title = None if title is None else prompt + title
        self._title_ids: Ids | None = None
        self._plan = plan
        self._in_pieces = in_pieces
        self._kept = TruncatingBuffer(
            model.tokenizer,
            max_tokens=max_tokens_of(options, model),
            policy=options.truncate,
            prompt_length=len(prompt),
        )
        needs_offsets = plan is not None or bool(prompt) or options.truncate != "error"
        self._stream = model.tokenizer.stream(self._kept.take, with_offsets=needs_offsets)
        self._stream.feed(prompt)
        self._content: list[str] | None = [] if needs_content(plan) else None
        self._head = ""
        self._num_characters = 0

    @property
    def num_tokens(self) -> int:
        """Tokens read so far."""
        return self._kept.num_tokens

    @property
    def num_characters(self) -> int:
        """Characters read so far."""
        return self._num_characters

    def feed(self, text: str) -> None:
        if self._title is not None and self._title_ids is None:
            self._title_ids = title_ids(self._title, self._model)
        self._num_characters += len(text)
        self._head += text[: HEAD_CHARACTERS - len(self._head)]
        if self._content is not None:
            self._content.append(text)
        self._stream.feed(text)
        self._kept.check_fits(has_ended=False)
        if self._in_pieces:
            self._check_memory()

    def finish(self) -> PreparedText:
        if self._num_characters == 0:
            raise InvalidInput("the document has no text", code="empty_text", param="text")
        self._stream.finish()
        encoded, num_tokens, dropped = self._kept.result()
        source = Source("".join(self._content or ()), self._num_characters, dropped is not None)
        chunks = [] if self._plan is None else chunk_spans(encoded, self._plan, source)
        shares = self._shares if chunks else NO_SHARES
        share, begin = shares.title, list[Span]()
        if shares.opening and self._title_ids is None:
            opening = self._opening(encoded)
            share, begin = opening.share, [opening.tokens]
        return PreparedText(
            ids=encoded.ids,
            spans=(Span(0, encoded.num_tokens), *begin, *(chunk.tokens for chunk in chunks)),
            chunks=tuple(chunks),
            opening=share,
            alone=shares.alone,
            title=self._title_ids if chunks else None,
            num_prompt=encoded.num_prompt,
            num_tokens=num_tokens,
            dropped=dropped,
        )

    def _opening(self, encoded: Encoded) -> Opening:
        first = encoded.num_prefix
        return opening_of(
            encoded.offsets[first : first + encoded.num_content],
            title_span(self._head),
            self._shares,
            first=first,
            num_prompt=encoded.num_prompt,
            num_tokens=encoded.num_tokens,
        )

    def _check_memory(self) -> None:
        if self._stream.num_buffered > MAX_UNCUT_CHARACTERS:
            raise InvalidInput(
                f"the text has {self._stream.num_buffered} characters in a row where this model's "
                f"tokenizer cannot split it, the limit is {MAX_UNCUT_CHARACTERS}",
                code="uncuttable_text",
                param="text",
                limit=MAX_UNCUT_CHARACTERS,
                actual=self._stream.num_buffered,
            )
        if self._content is not None and self._num_characters > MAX_READ_CHARACTERS:
            raise InvalidInput(
                f"the text has more than {MAX_READ_CHARACTERS} characters, which is the limit for "
                "chunks of sentences and sections",
                code="text_too_long",
                param="text",
                limit=MAX_READ_CHARACTERS,
                actual=self._num_characters,
            )


def check_title(title: str, plan: Chunking | None) -> None:
    """Reject a title that is empty, or that no vector would use."""
    if not is_visible(title):
        raise InvalidInput(
            "title is empty; leave it out if the document has none",
            code="empty_title",
            param="title",
        )
    check_unicode(title, "title", param="title")
    if plan is None:
        raise InvalidInput(
            "title is used for the vectors of chunks, and chunking asks for none",
            code="unused_title",
            param="title",
        )
    if shares_of(plan).opening == 0:
        using = titled_contexts()
        why = "opening is 0" if plan.opening == 0 else f"context is {plan.context}"
        raise InvalidInput(
            f"title is not used when {why}; contexts that use it: {using}",
            code="unused_title",
            param="title",
            limit=using,
            actual=plan.context,
        )


def title_ids(title: str, model: EmbeddingModel) -> Ids:
    """The token ids of a title, after the prompt if there is one."""
    (encoded,) = model.tokenizer.encode_batch([title])
    limit = min(MAX_TITLE_TOKENS, model.info.max_tokens)
    if encoded.num_tokens > limit:
        raise TextTooLong(
            f"title has {encoded.num_tokens} tokens, the limit is {limit}",
            code="title_too_long",
            param="title",
            limit=limit,
            actual=encoded.num_tokens,
        )
    return encoded.ids


class DocumentStream:
    """Takes the pieces of one document, then returns its embedding.

    Pieces are strings or bytes of UTF-8, cut anywhere. They are tokenised as they arrive, off the
    event loop. Await each call before the next. An error or `abort` closes the document.
    """

    def __init__(
        self,
        reader: DocumentReader,
        run: Callable[[PreparedText, Deadline], Awaitable[DocumentEmbedding]],
        deadline: Deadline,
        counting_rejections: Callable[[], AbstractContextManager[None]],
        pool: TokenizerPool,
    ) -> None:
        self._reader: DocumentReader | None = reader
        self._run = run
        self._pool = pool
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

    async def finish(self) -> DocumentEmbedding:
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
        async with self._deadline.over():
            return await self._pool.run(
                one_step(work), characters=reader.num_characters + READ_BYTES, is_admitted=True
            )

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
