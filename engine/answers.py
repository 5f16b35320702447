"""From what the device gave to what the caller asked for."""

from __future__ import annotations

from typing import Any

from engine.model.embedding_model import EmbeddingModel
from engine.prepare import Prepared
from engine.runner import finish
from engine.thread import Delivered
from engine.types import (
    Accounting,
    Chunk,
    DocumentEmbedding,
    Embedding,
    EmbedOptions,
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
    vectors = finish(result.value, options)
    chunks = tuple(
        Chunk(index=index, tokens=span.tokens, characters=span.characters, vector=vector)
        for index, (span, vector) in enumerate(zip(document.chunks, vectors[1:], strict=True))
    )
    return DocumentEmbedding(
        vector=vectors[0], chunks=chunks, accounting=accounting(document, result)
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
