"""A document that stays open between requests: clients send its text once, then name its handle.

The cache keeps the document and, if they fit, the states of all of its layers, so that the next
request need not run the encoder again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from engine.analysis.cache import ByteCache
from engine.analysis.head_attention import head_attention_bytes
from engine.analysis.layer_capture import (
    CapturedLayer,
    capture_bytes,
    capture_layers,
    projection_bytes,
)
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


def capture_layers_of(document: OpenDocument, cache: ByteCache) -> Iterator[Steps[CapturedLayer]]:
    """The layers in their order. What each layer reads goes into the cache if all of it fits."""
    if states := _all_states(document, cache):
        # This reference keeps them while the cache makes room for other documents.
        for index, (before, after) in enumerate(pairwise(states)):
            yield _project(document, index, before, after)
        return
    for steps in capture_layers(document.model, document.prepared):
        yield _cache_states(document, steps, cache)


def _project(
    document: OpenDocument, layer: int, before: Tensor, after: Tensor
) -> Steps[CapturedLayer]:
    """A layer from its states: one projection, without a pause."""
    yield from ()
    q, k, v = document.model.encoder.projected(layer, before, [0, document.num_tokens])
    return CapturedLayer(index=layer, before=before, after=after, q=q, k=k, v=v)


def _cache_states(
    document: OpenDocument, steps: Steps[CapturedLayer], cache: ByteCache
) -> Steps[CapturedLayer]:
    layer = yield from steps
    if _states_fit(document, layer.before, cache):
        _put_states(document, layer.index, layer.before, cache)
        if layer.index + 1 == document.model.info.num_layers:
            _put_states(document, layer.index + 1, layer.after.clone(), cache)
    return layer


def document_capture_bytes(document: OpenDocument, cache: ByteCache) -> int:
    """What capturing its layers takes; with all states in the cache, one layer's projections."""
    num_bytes = projection_bytes if _all_states(document, cache) else capture_bytes
    return num_bytes(document.model.encoder, document.num_tokens)


def capture_layer(document: OpenDocument, index: int, cache: ByteCache) -> Steps[CapturedLayer]:
    """One layer of the document. The others are computed too if their states fit the cache."""
    before, after = (_cached_states(document, at, cache) for at in (index, index + 1))
    if before is not None and after is not None:
        return (yield from _project(document, index, before, after))
    found: CapturedLayer | None = None
    for steps in capture_layers_of(document, cache):
        layer = yield from steps
        if layer.index == index:
            found = layer
            if not _states_fit(document, layer.before, cache):
                break
        yield
    assert found is not None, "a plan has layers that exist"
    return found


def states_before(document: OpenDocument, layer: int, cache: ByteCache) -> Steps[Tensor]:
    """What a layer of the document reads: [T, W]."""
    if (states := _cached_states(document, layer, cache)) is not None:
        return states
    return (yield from capture_layer(document, layer, cache)).before


def _all_states(document: OpenDocument, cache: ByteCache) -> list[Tensor]:
    """What every layer reads, and what the last one returns; empty unless all are cached."""
    num_layers = document.model.info.num_layers
    found = [_cached_states(document, index, cache) for index in range(num_layers + 1)]
    states = [one for one in found if one is not None]
    return states if len(states) == len(found) else []


def _cached_states(document: OpenDocument, layer: int, cache: ByteCache) -> Tensor | None:
    states: Tensor | None = cache.get(("states", document.handle, layer))
    return states


def _put_states(document: OpenDocument, layer: int, states: Tensor, cache: ByteCache) -> None:
    cache.put(("states", document.handle, layer), states, states.nbytes)


def _states_fit(document: OpenDocument, states: Tensor, cache: ByteCache) -> bool:
    """Whether the states of all layers fit beside one head's attention: otherwise each would drive
    the other out."""
    of_states = states.nbytes * (document.model.info.num_layers + 1)
    of_head = head_attention_bytes(
        len(states), document.model.encoder.weights.head_dim, states.dtype
    )
    return of_states + of_head <= cache.max_derived_bytes
