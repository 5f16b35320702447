"""A document that stays open between requests: its text is sent once, then named by a handle."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from engine.errors import InvalidInput, ResourceNotFound, shown
from engine.maps.cache import ByteCache
from engine.model.embedding_model import EmbeddingModel
from engine.prepare import Prepared, check_text
from engine.reader import encode_behind_prompt
from engine.types import EmbedOptions, Offsets, Span


@dataclass(frozen=True, kw_only=True, eq=False)
class OpenDocument:
    handle: str
    model: EmbeddingModel
    ids: NDArray[np.int32]  # [tokens]
    offsets: Offsets  # [tokens, 2] characters of the text; (0, 0) for special tokens
    breaks: NDArray[np.int8]  # [tokens] how strongly the text itself parts before each token

    @property
    def num_tokens(self) -> int:
        return len(self.ids)

    @property
    def num_bytes(self) -> int:
        return self.ids.nbytes + self.offsets.nbytes + self.breaks.nbytes

    @property
    def prepared(self) -> Prepared:
        """As the engine reads any text."""
        return Prepared.whole(self.ids)

    def characters_of(self, token: int) -> Span | None:
        """The characters a token stands for; None for a special token."""
        start, end = self.offsets[token].tolist()
        return Span(start, end) if end > start else None

    def written(self, tokens: Sequence[int]) -> tuple[str, ...]:
        """The tokens as the vocabulary writes them."""
        return self.model.tokenizer.tokens_of(self.ids[list(tokens)])


def open_document(text: str, model: EmbeddingModel, cache: ByteCache) -> OpenDocument:
    """The text as this model reads it. The same text of the same model has the same handle."""
    check_text(text, "text")
    handle = handle_of(text, model)
    known: OpenDocument | None = cache.get(("document", handle))
    if known is not None:
        return known
    opened = _read(text, model, handle)
    cache.put_source(("document", handle), opened, opened.num_bytes)
    return opened


def _read(text: str, model: EmbeddingModel, handle: str) -> OpenDocument:
    encoded = encode_behind_prompt(text, model, EmbedOptions())
    return OpenDocument(
        handle=handle,
        model=model,
        ids=encoded.ids,
        offsets=encoded.offsets,
        breaks=breaks_before(text, encoded.offsets),
    )


def handle_of(text: str, model: EmbeddingModel) -> str:
    """Of the text and of everything that decides how it is attended to."""
    parts = (model.name, model.info.revision, *model.info.attention, str(model.info.calibration))
    digest = hashlib.sha256("\0".join((*parts, text)).encode())
    return f"doc-{digest.hexdigest()[:32]}"


PARAGRAPH, LINE, SENTENCE = 3, 2, 1


def breaks_before(text: str, offsets: Offsets) -> NDArray[np.int8]:
    """What the text holds just before each token: a blank line, a line's end, a sentence's end."""
    breaks = np.zeros(len(offsets), dtype=np.int8)
    previous_end = 0
    for token, (start, end) in enumerate(offsets.tolist()):
        if end <= start:
            continue
        if start > previous_end:
            breaks[token] = _break_within(text, previous_end, start)
        previous_end = end
    return breaks


def _break_within(text: str, start: int, end: int) -> int:
    gap = text[start:end]
    if gap.count("\n") > 1:
        return PARAGRAPH
    if "\n" in gap:
        return LINE
    return SENTENCE if start and text[start - 1] in ".!?" else 0


def find_document(cache: ByteCache, handle: str) -> OpenDocument:
    document: OpenDocument | None = cache.get(("document", handle))
    if document is None:
        raise ResourceNotFound(
            f"document {shown(handle)!r} is not open here, or no longer; send its text",
            code="document_not_found",
            param="document",
            actual=handle,
        )
    return document


def check_source(text: str | None, handle: str | None) -> None:
    """A document is given by its text or by its handle, and not by both."""
    if (text is None) == (handle is None):
        given = "neither" if text is None else "both"
        raise InvalidInput(
            f"give text or document, one of the two; got {given}",
            code="invalid_document",
            param="text",
            actual=given,
        )


def check_reader(document: OpenDocument, model: EmbeddingModel) -> None:
    """An open document was read by one model; another one reads its text anew."""
    if document.model.name != model.name:
        raise InvalidInput(
            f"document {document.handle!r} was read by {document.model.name}, "
            f"not by {model.name}; send its text",
            code="wrong_model",
            param="model",
            limit=document.model.name,
            actual=model.name,
        )
