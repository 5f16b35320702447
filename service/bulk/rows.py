"""A row of a corpus on its way in, and what became of it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from engine.types import Chunking, EmbedOptions, Span, Vector
from service.bulk.balance import estimated_cost


@dataclass(frozen=True, kw_only=True)
class TextRow:
    """A text to embed."""

    id: str | int
    text: str
    title: str | None = None
    kept: Mapping[str, Any] = field(default_factory=dict)
    """Fields that go through to the output."""

    num_bytes: int = 0
    """What it takes in its file, for progress."""


@dataclass(frozen=True, kw_only=True)
class BadRow:
    """A row without a text that can be embedded."""

    id: str | int
    code: str
    reason: str
    num_bytes: int = 0


InputRow: TypeAlias = TextRow | BadRow


@dataclass(frozen=True, kw_only=True)
class VectorRow:
    """A vector of a text or of one of its chunks, and all that the output says of it."""

    id: str | int
    chunk: int | None
    """The chunk's number in its text; None for the vector of the whole text."""

    characters: Span
    tokens: int
    """Tokens of the whole text, special ones included."""

    tokens_embedded: int
    """Tokens of the whole text; fewer than `tokens` only if it was truncated."""

    dropped: Span | None
    """The characters that truncation dropped."""

    kept: Mapping[str, Any]
    vector: Vector


EmbeddedRow: TypeAlias = Sequence[VectorRow] | BadRow


@dataclass(frozen=True, kw_only=True)
class RowOptions:
    """How the texts of a job become vectors."""

    model: str
    options: EmbedOptions = field(default_factory=EmbedOptions)
    chunking: Chunking | None = None
    """With one, a row of the output is a chunk."""

    text_field: str = "text"
    """Kept with a chunk, this is the chunk's own text."""


def cost_of(row: InputRow) -> int:
    return estimated_cost(row.text) if isinstance(row, TextRow) else 0


def digest_of(rows: Iterable[InputRow]) -> str:
    """A hash of all that decides the output of these rows."""
    digest = hashlib.sha256()
    for row in rows:
        if isinstance(row, TextRow):
            content = ["text", row.id, row.title, row.kept, row.text]
        else:
            content = ["bad", row.id, row.code, row.reason]
        digest.update(json.dumps(content).encode() + b"\n")
    return digest.hexdigest()
