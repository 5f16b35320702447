"""From a row of a corpus to its vectors."""

from __future__ import annotations

from dataclasses import dataclass, field

from engine.async_engine import AsyncEngine
from engine.errors import InsufficientMemory, InvalidInput
from engine.types import Chunking, EmbedOptions, Span, Vector
from service.bulk.rows import BadRow, EmbeddedRow, InputRow, VectorRow


@dataclass(frozen=True, kw_only=True)
class RowOptions:
    """How the texts of a job become vectors."""

    model: str
    options: EmbedOptions = field(default_factory=EmbedOptions)
    chunking: Chunking | None = None
    """With one, a row of the output is a chunk."""

    text_field: str = "text"
    """Kept with a chunk, this is the chunk's own text."""


async def embed_row(row: InputRow, engine: AsyncEngine, how: RowOptions) -> EmbeddedRow:
    """The vectors of a row, or the reason why there are none. Other rows are not affected."""
    if isinstance(row, BadRow):
        return row
    vectors: list[tuple[int | None, Span, Vector]]
    try:
        if how.chunking is None:
            (whole,) = await engine.embed(
                [row.text], model=how.model, options=how.options, wait_for_room=True
            )
            cost, vectors = whole.accounting, [(None, Span(0, len(row.text)), whole.vector)]
        else:
            document = await engine.embed_document(
                row.text,
                model=how.model,
                chunks=how.chunking,
                title=row.title,
                options=how.options,
            )
            cost = document.accounting
            vectors = [(chunk.index, chunk.characters, chunk.vector) for chunk in document.chunks]
    except (InvalidInput, InsufficientMemory) as error:
        return BadRow(id=row.id, code=error.code, reason=error.message, num_bytes=row.num_bytes)
    return [
        VectorRow(
            id=row.id,
            chunk=number,
            characters=span,
            tokens=cost.tokens,
            tokens_embedded=cost.tokens_embedded,
            dropped=cost.dropped,
            kept={
                name: row.text[span.start : span.end] if name == how.text_field else value
                for name, value in row.kept.items()
            },
            vector=vector,
        )
        for number, span, vector in vectors
    ]
