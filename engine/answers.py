"""From what the device gave to what the caller asked for."""

from __future__ import annotations

from typing import Any

from engine.model.embedding_model import EmbeddingModel
from engine.orders import Delivered
from engine.prepare import Prepared
from engine.runner import finish
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


def document_embedding(
    document: Prepared, result: Delivered[Vector], options: EmbedOptions
) -> DocumentEmbedding:
    return DocumentEmbedding(
        vector=finish(result.value[:1], options)[0],
        chunks=chunks_from(document, 0, result.value[1:], options),
        accounting=accounting(document, result),
    )


def document_event(document: Prepared, event: SweepEvent, options: EmbedOptions) -> DocumentEvent:
    """What the sweep says, as its caller hears it."""
    if isinstance(event, Progress):
        return event
    return ChunksReady(chunks=chunks_from(document, event.first, event.vectors, options))


def chunks_from(
    document: Prepared, first: int, vectors: Vector, options: EmbedOptions
) -> tuple[Chunk, ...]:
    """The chunks that these pooled vectors belong to, which begin with the chunk of this index."""
    if not len(vectors):
        return ()
    spans = document.chunks[first : first + len(vectors)]
    return tuple(
        Chunk(
            index=index,
            tokens=span.tokens,
            characters=span.characters,
            vector=vector,
            headings=span.headings,
        )
        for index, (span, vector) in enumerate(
            zip(spans, finish(vectors, options), strict=True), first
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
