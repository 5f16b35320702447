"""One document on its way to the device, whole or in pieces."""

from __future__ import annotations

from engine.errors import InvalidInput
from engine.model.embedding_model import EmbeddingModel
from engine.prepare import Prepared, check_input, prompt_of
from engine.text.chunks import (
    OPENING_TOKENS,
    Source,
    check_chunking,
    chunk_spans,
    needs_content,
)
from engine.text.kept import KeptTokens
from engine.text.tokenizer import Encoded
from engine.types import Chunking, EmbedOptions, Span

MAX_UNCUT_CHARACTERS = 4_194_304
"""Text of a stream held back for want of a place to cut it: it costs some hundred bytes each."""

MAX_READ_CHARACTERS = 16_777_216
"""Text of a stream kept for chunking to read, where it needs more than tokens."""


def prepare_document(
    text: str, model: EmbeddingModel, options: EmbedOptions, plan: Chunking | None
) -> Prepared:
    """One document with its late chunks, whose characters count from the text without prompt."""
    check_input(text, "text")
    reader = DocumentReader(model, options, plan)
    reader.feed(text)
    return reader.finish()


def encode_behind_prompt(text: str, model: EmbeddingModel, options: EmbedOptions) -> Encoded:
    """A text that must fit, read as an embedding reads it; its characters count from its own
    beginning, and a prompt's tokens have none."""
    prompt = prompt_of(options, model)
    kept = KeptTokens(
        model.tokenizer,
        max_tokens=model.info.max_tokens,
        policy="error",
        prompt_length=len(prompt),
    )
    stream = model.tokenizer.stream(kept.take, with_offsets=True)
    stream.feed(prompt)
    stream.feed(text)
    stream.finish()
    return kept.fitted().encoded


class DocumentReader:
    """Reads a document and keeps of it what the device and chunking need.

    With `in_pieces`, more may follow: it is refused as soon as it is known to be too long.
    """

    def __init__(
        self,
        model: EmbeddingModel,
        options: EmbedOptions,
        plan: Chunking | None,
        *,
        in_pieces: bool = False,
    ) -> None:
        if plan is not None:
            check_chunking(plan)
        prompt = prompt_of(options, model)
        self._plan = plan
        self._in_pieces = in_pieces
        self._kept = KeptTokens(
            model.tokenizer,
            max_tokens=model.info.max_tokens,
            policy=options.truncate,
            prompt_length=len(prompt),
        )
        needs_offsets = plan is not None or bool(prompt) or options.truncate != "error"
        self._stream = model.tokenizer.stream(self._kept.take, with_offsets=needs_offsets)
        self._stream.feed(prompt)
        self._content: list[str] | None = [] if needs_content(plan) else None
        self._num_characters = 0

    @property
    def num_tokens(self) -> int:
        """Of what has been tokenised so far."""
        return self._kept.num_tokens

    def feed(self, text: str) -> None:
        self._num_characters += len(text)
        if self._content is not None:
            self._content.append(text)
        self._stream.feed(text)
        if self._in_pieces:
            self._kept.check_fits(has_ended=False)
            self._check_memory()

    def finish(self) -> Prepared:
        if self._num_characters == 0:
            raise InvalidInput("the document has no text", code="empty_text", param="text")
        self._stream.finish()
        encoded, num_tokens, dropped = self._kept.fitted()
        source = Source("".join(self._content or ()), self._num_characters, dropped is not None)
        chunks = [] if self._plan is None else chunk_spans(encoded, self._plan, source)
        opening = 0.0 if self._plan is None or not chunks else self._plan.opening
        # A long prompt would else be all of it, and every document's opening the same.
        end = min(encoded.num_prompt + OPENING_TOKENS, encoded.num_tokens)
        begin = [Span(0, end)] if opening else []
        return Prepared(
            ids=encoded.ids,
            spans=(Span(0, encoded.num_tokens), *begin, *(chunk.tokens for chunk in chunks)),
            chunks=tuple(chunks),
            opening=opening,
            alone=0.0 if self._plan is None or not chunks else self._plan.alone,
            num_prompt=encoded.num_prompt,
            num_tokens=num_tokens,
            dropped=dropped,
        )

    def _check_memory(self) -> None:
        if self._stream.num_held > MAX_UNCUT_CHARACTERS:
            raise InvalidInput(
                f"the text has {self._stream.num_held} characters in a row without a place where "
                f"this model's tokenizer can be stopped, the limit is {MAX_UNCUT_CHARACTERS}",
                code="uncuttable_text",
                param="text",
                limit=MAX_UNCUT_CHARACTERS,
                actual=self._stream.num_held,
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
