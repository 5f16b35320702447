"""A document that stays open between requests: clients send its text once, then name its handle."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from engine.analysis.cache import ByteCache
from engine.errors import InvalidInput, ResourceNotFound, shown
from engine.execution.documents import encode_behind_prompt
from engine.execution.input_checks import check_text
from engine.execution.inputs import PreparedText
from engine.model.embedding_model import EmbeddingModel
from engine.steps import Steps
from engine.text.headings.sections import sections
from engine.types import EmbedOptions, Offsets, Span

_TOKENS_PER_STEP = 65_536

HEADING, PARAGRAPH, LINE, SENTENCE = 4, 3, 2, 1
"""How strongly the text itself separates a token from the one before. A heading's token has HEADING
and one more for each level that it stands above the innermost."""

_HEADING_LEVELS = 9


@dataclass(frozen=True, kw_only=True, eq=False)
class OpenDocument:
    handle: str
    model: EmbeddingModel
    ids: NDArray[np.int32]  # [tokens]
    offsets: Offsets  # [tokens, 2] characters of the text; (0, 0) for special tokens
    breaks: NDArray[np.int8]  # [tokens] the break before each token; 0 for none

    @property
    def num_tokens(self) -> int:
        return len(self.ids)

    @property
    def num_bytes(self) -> int:
        return self.ids.nbytes + self.offsets.nbytes + self.breaks.nbytes

    @property
    def prepared(self) -> PreparedText:
        """As the engine reads any other text."""
        return PreparedText.whole(self.ids)

    def characters_of(self, token: int) -> Span | None:
        """The characters a token stands for; None for a special token."""
        start, end = self.offsets[token].tolist()
        return Span(start, end) if end > start else None

    def written(self, tokens: Sequence[int]) -> tuple[str, ...]:
        """The tokens as the vocabulary writes them."""
        return self.model.tokenizer.tokens_of(self.ids[list(tokens)])


def open_document(text: str, model: EmbeddingModel, cache: ByteCache) -> Steps[OpenDocument]:
    """Read a text with this model. The same text and model give the same handle."""
    check_text(text, "text")
    handle = handle_of(text, model)
    known: OpenDocument | None = cache.get(("document", handle))
    if known is not None:
        return known
    encoded = yield from encode_behind_prompt(text, model, EmbedOptions())
    opened = OpenDocument(
        handle=handle,
        model=model,
        ids=encoded.ids,
        offsets=encoded.offsets,
        breaks=(yield from breaks_before(text, encoded.offsets)),
    )
    cache.put_source(("document", handle), opened, opened.num_bytes)
    return opened


def handle_of(text: str, model: EmbeddingModel) -> str:
    """A hash of the text and of everything that decides the attention over it."""
    parts = (model.name, model.info.revision, *model.info.attention, str(model.info.calibration))
    digest = hashlib.sha256("\0".join((*parts, text)).encode())
    return f"doc-{digest.hexdigest()[:32]}"


def breaks_before(text: str, offsets: Offsets) -> Steps[NDArray[np.int8]]:
    """What ends in the text just before each token: a paragraph, a line, a sentence or nothing."""
    breaks = np.zeros(len(offsets), dtype=np.int8)
    previous_end = 0
    for first in range(0, len(offsets), _TOKENS_PER_STEP):
        of_step = offsets[first : first + _TOKENS_PER_STEP].tolist()
        for token, (start, end) in enumerate(of_step, first):
            if end <= start:
                continue
            if start > previous_end:
                breaks[token] = _break_within(text, previous_end, start)
            previous_end = end
        yield
    _mark_headings(breaks, text, offsets)
    return breaks


def _mark_headings(breaks: NDArray[np.int8], text: str, offsets: Offsets) -> None:
    """Marks the first token of each heading of the text, markup included."""
    tokens = np.flatnonzero(offsets[:, 1] > offsets[:, 0])
    if not len(tokens):
        return
    for section in sections(text, "auto"):
        if section.headings:
            at = int(np.searchsorted(offsets[tokens, 0], section.characters.start))
            level = min(len(section.headings), _HEADING_LEVELS)
            breaks[tokens[min(at, len(tokens) - 1)]] = HEADING + _HEADING_LEVELS - level


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
    """A request has the text of a document or its handle, not both."""
    if (text is None) == (handle is None):
        given = "neither" if text is None else "both"
        raise InvalidInput(
            f"give text or document, one of the two; got {given}",
            code="invalid_document",
            param="text",
            actual=given,
        )


def check_reader(document: OpenDocument, model: EmbeddingModel) -> None:
    """An open document belongs to the model that read it; another model needs its text."""
    if document.model.name != model.name:
        raise InvalidInput(
            f"document {document.handle!r} was read by {document.model.name}, "
            f"not by {model.name}; send its text",
            code="wrong_model",
            param="model",
            limit=document.model.name,
            actual=model.name,
        )
