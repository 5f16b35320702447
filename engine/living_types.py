"""What is asked about documents with records, and the answers, as plain data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from engine.types import Chunk, DocumentEmbedding

RecordPrecision: TypeAlias = Literal["float32", "float16"]
"""The data type of LLN's states in a document's record."""


@dataclass(frozen=True, kw_only=True)
class LivingChunk(Chunk):
    """A chunk of a document with a record."""

    previous: int | None = None
    """Its index in the document of the record; None if it was read now, or has other headings
    now."""

    staleness: float = 0.0
    """A bound on 1 - cosine to a fresh vector, for 99 % of kept chunks; 0 if the chunk was read in
    the last round."""


@dataclass(frozen=True, kw_only=True)
class LivingEmbedding(DocumentEmbedding):
    """A document with what it takes to read it on after a change."""

    chunks: tuple[LivingChunk, ...]
    record: bytes
    tokens_read: int
    """Tokens that the device read within the document for this answer."""

    staleness: float
    """The same bound for the document's vector."""

    segments: int
    segments_read: int
    gone: tuple[int, ...] = ()
    """Indices of the record's chunks that are no part of this answer."""

    rounds: int = 1
    """How often segments were read until none was more stale than allowed."""

    sealed: int = 0
    """Chunks of a folded record, which are no part of this answer and stay as they were. Those of
    the answer are numbered on from them."""

    sealed_staleness: float = 0.0
    """What the staleness of each of them stays within."""
