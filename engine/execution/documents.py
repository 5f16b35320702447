"""Reads documents into token ids and late chunks, whole or in pieces."""

from __future__ import annotations

from engine.errors import InvalidInput
from engine.execution.input_checks import check_text
from engine.execution.inputs import PreparedText, max_tokens_of
from engine.execution.linked_text import with_links
from engine.execution.prompts import prompt_of
from engine.execution.told_titles import check_title, title_ids
from engine.model.embedding_model import EmbeddingModel
from engine.steps import Steps, finish
from engine.text.chunking import (
    NO_SHARES,
    Source,
    check_chunking,
    chunk_spans,
    needs_content,
    settled,
    shares_of,
)
from engine.text.encoded import Encoded
from engine.text.openings import Opening, opening_of
from engine.text.streaming import read_pieces
from engine.text.titles import HEAD_CHARACTERS, title_span
from engine.text.truncation import TruncatingBuffer
from engine.types import Chunking, EmbedOptions, Ids, Span

MAX_UNCUT_CHARACTERS = 4_194_304
"""Most characters of a stream in a row without a place to cut them. Each costs some hundred
bytes."""

MAX_READ_CHARACTERS = 16_777_216
"""Most characters of a stream whose chunks need the text itself, and not only its tokens."""


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
    check_text(text, "text")
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
            plan = settled(plan, model.info.chunk_context)
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
        document = PreparedText(
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
        return with_links(document, self._model) if shares.linked else document

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
