"""From what the device gave to what the caller asked for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Self

import numpy as np

from engine.model.embedding_model import EmbeddingModel
from engine.orders import Delivered
from engine.prepare import Prepared
from engine.runner import finish, partly_alone, with_opening
from engine.sweep import SweepEvent
from engine.types import (
    Accounting,
    Chunk,
    ChunksReady,
    DocumentEmbedding,
    DocumentEvent,
    Embedding,
    EmbedOptions,
    Progress,
    Span,
    Tokenization,
    Vector,
)


def embedding(
    text: Prepared, result: Delivered[Vector], model: EmbeddingModel, options: EmbedOptions
) -> Embedding:
    vectors = finish(result.value, options)
    pooled = model.checkpoint.pooling != "none"
    return Embedding(vector=vectors[0] if pooled else vectors, accounting=accounting(text, result))


def token_states(text: Prepared, result: Delivered[Vector], options: EmbedOptions) -> Embedding:
    return Embedding(vector=finish(result.value, options), accounting=accounting(text, result))


class ReadAlone(NamedTuple):
    """What a document's passages gave as texts of their own."""

    vectors: Sequence[Vector] = ()  # each [1, dim]
    compute_s: float = 0.0

    @classmethod
    def of(cls, delivered: Sequence[Delivered[Vector]]) -> Self:
        """Those that ran in the same unit began together, and took its time once."""
        units = {(one.started_at, one.compute_s) for one in delivered}
        return cls([one.value for one in delivered], sum(seconds for _, seconds in units))


NOTHING_ALONE = ReadAlone()


def document_embedding(
    document: Prepared,
    result: Delivered[Vector],
    options: EmbedOptions,
    alone: ReadAlone = NOTHING_ALONE,
) -> DocumentEmbedding:
    chunks = ChunkVectors(document, options, alone)
    in_all = result._replace(compute_s=result.compute_s + alone.compute_s)
    return DocumentEmbedding(
        vector=finish(result.value[:1], options)[0],
        chunks=chunks.taken(0, result.value[1:]),
        accounting=accounting(document, in_all),
    )


class ChunkVectors:
    """One document's chunks, from pooled vectors that come in order, many at a time or all."""

    def __init__(
        self, document: Prepared, options: EmbedOptions, alone: ReadAlone = NOTHING_ALONE
    ) -> None:
        self._document = document
        # [spans but the first, dim]
        self._alone = np.concatenate(alone.vectors) if alone.vectors else None
        self._options = options
        self._opening: Vector | None = None  # [dim]

    def heard(self, event: SweepEvent) -> DocumentEvent | None:
        """What the sweep says, as its caller hears it; None if that is nothing yet."""
        if isinstance(event, Progress):
            return event
        chunks = self.taken(event.first, event.vectors)
        return ChunksReady(chunks=chunks) if chunks else None

    def taken(self, first: int, vectors: Vector) -> tuple[Chunk, ...]:
        """The chunks of these vectors, of which the first is the document's `first` one, its
        opening counted among them where it is asked for."""
        document = self._document
        if self._alone is not None and len(vectors):
            read_alone = self._alone[first : first + len(vectors)]
            vectors = partly_alone(vectors, read_alone, document.alone)
        if document.opening and len(vectors):
            if first == 0:
                self._opening, vectors = vectors[0], vectors[1:]
            else:
                first -= 1
        if not len(vectors):
            return ()
        spans = document.chunks[first : first + len(vectors)]
        if self._opening is not None:
            vectors = with_opening(vectors, self._opening, document.opening)
        return tuple(
            Chunk(
                index=index,
                tokens=span.tokens,
                characters=span.characters,
                vector=vector,
                headings=span.headings,
            )
            for index, (span, vector) in enumerate(
                zip(spans, finish(vectors, self._options), strict=True), first
            )
        )


def accounting(text: Prepared, result: Delivered[Any]) -> Accounting:
    return Accounting(
        tokens=text.num_tokens,
        tokens_embedded=text.num_embedded,
        dropped=text.dropped,
        queue_s=result.queue_s,
        compute_s=result.compute_s,
    )


def tokenization(text: str, model: EmbeddingModel) -> Tokenization:
    encoded = model.tokenizer.encode_batch([text], with_offsets=True)[0]
    return Tokenization(
        ids=tuple(encoded.ids.tolist()),
        offsets=tuple(Span(start, end) for start, end in encoded.offsets.tolist()),
        tokens=model.tokenizer.tokens_of(encoded.ids),
    )
