"""Answers with vectors: of texts, of documents and of their chunks."""

from __future__ import annotations

from typing import Literal

from pydantic import RootModel

from service.http.schemas.responses.base import (
    AccountingValue,
    Answer,
    SpanValue,
    Usage,
    VectorValue,
)


class EmbeddingNotes(Answer):
    """Present only if the text was cut, or if the model does not pool: `shape` is the matrix's."""

    tokens: int | None = None
    tokens_embedded: int | None = None
    dropped: SpanValue | None = None
    shape: list[int] | None = None


class EmbeddingItem(Answer):
    object: Literal["embedding"]
    index: int
    embedding: VectorValue | list[list[float]]
    lln: EmbeddingNotes | None = None


class EmbeddingsAnswer(Answer):
    object: Literal["list"]
    data: list[EmbeddingItem]
    model: str
    usage: Usage


class ChunkItem(Answer):
    """`characters` are code points of the text. `headings` are those above the chunk, outermost
    first, if chunks go from heading to heading."""

    index: int
    tokens: SpanValue
    characters: SpanValue
    headings: list[str]
    vector: VectorValue


class DocumentAnswer(Answer):
    """`vector` is null if the request said `"vector": false`."""

    object: Literal["document_embedding"]
    model: str
    vector: VectorValue | None
    chunks: list[ChunkItem]
    accounting: AccountingValue
    usage: Usage


class LivingChunkItem(ChunkItem):
    """A chunk of a document with a record. `previous` is the number of a kept chunk in the record,
    null if it was read now or has other headings now; `staleness` is what 1 - cosine to a fresh
    reading stays within for 99 % of kept chunks."""

    previous: int | None
    staleness: float


class LivingDocumentAnswer(DocumentAnswer):
    """A document with its record, in base64. `gone` are the record's chunks that are no more. Of a
    folded record, the first `sealed` chunks are not listed and stay as they were, no staler than
    `sealed_staleness`."""

    chunks: list[LivingChunkItem]  # type: ignore[assignment]
    record: str
    tokens_read: int
    segments: int
    segments_read: int
    staleness: float
    gone: list[int]
    rounds: int
    sealed: int
    sealed_staleness: float


class VectorList(RootModel[list[list[float]]]):
    """A vector for each text."""


class TokenStates(RootModel[list[list[list[float]]]]):
    """For each text, a vector for each of its tokens."""
