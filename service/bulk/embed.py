"""From rows of a corpus to their vectors, with one engine."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator
from functools import partial
from time import monotonic

from engine.async_engine import AsyncEngine
from engine.errors import InsufficientMemory, InvalidInput, LLNError, shown
from engine.text.chunking import settled, shares_of
from engine.types import Chunking, ModelInfo, Span, Vector
from service.bulk import parts
from service.bulk.pieces import Piece, Stretch, embedded_piece
from service.bulk.rows import (
    BadRow,
    EmbeddedRow,
    InputRow,
    RowOptions,
    TextRow,
    VectorRow,
    cost_of,
)
from service.in_order import in_order
from service.patience import patiently

_MAX_CHARACTERS_AT_ONCE = 400_000
_LEAST_PIECE_TOKENS = 1_000
_LEAST_PIECE_S = 0.1
"""Smaller pieces would be more work to send to a GPU than to embed."""
_ROW_WEIGHT = 1_000  # what a row weighs besides its characters


class OneEngine:
    """Embeds rows in this process."""

    def __init__(self, engine: AsyncEngine, model: str, piece_cost: int | None = None) -> None:
        self._engine = engine
        self._model = model
        self._piece_cost = piece_cost or piece_cost_of(1)

    @property
    def model(self) -> ModelInfo:
        return self._engine.resolve(self._model)

    async def embed(self, stretches: Iterable[Stretch], how: RowOptions) -> AsyncIterator[Piece]:
        """Pieces in the order of the rows. The rows of the next stretch begin while those of one
        end."""
        dim = how.options.dimensions or self.model.dim
        first, cost, sent_at = 0, 0, monotonic()
        results: list[EmbeddedRow] = []

        def rows() -> Iterator[tuple[Stretch, InputRow]]:
            for stretch in stretches:
                yield from ((stretch, row) for row in stretch.rows)

        async def embed(item: tuple[Stretch, InputRow]) -> EmbeddedRow:
            return await embed_row(item[1], self._engine, how)

        async for (stretch, row), result in in_order(
            rows(), embed, weigh=lambda item: _weight(item[1]), max_weight=_MAX_CHARACTERS_AT_ONCE
        ):
            results.append(result)
            cost += cost_of(row)
            is_last = first + len(results) == len(stretch.rows)
            is_due = cost >= self._piece_cost and monotonic() - sent_at >= _LEAST_PIECE_S
            if is_last or is_due:
                yield embedded_piece(stretch, first, results, dim)
                first = 0 if is_last else first + len(results)
                cost, results, sent_at = 0, [], monotonic()


def piece_cost_of(num_at_once: int) -> int:
    """What a piece may cost where this many stretches are embedded at once: a kill of all of them
    repeats an eighth of a part."""
    return max(_LEAST_PIECE_TOKENS, parts.PART_TOKENS // (8 * num_at_once))


def _uses_title(chunking: Chunking, model: ModelInfo) -> bool:
    return shares_of(settled(chunking, model.chunk_context)).opening > 0


def _weight(row: InputRow) -> int:
    return _ROW_WEIGHT + (len(row.text) if isinstance(row, TextRow) else 0)


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
            read = partial(
                engine.embed_chunks,
                row.text,
                model=how.model,
                chunks=how.chunking,
                title=row.title if _uses_title(how.chunking, engine.resolve(how.model)) else None,
                options=how.options,
            )
            document = await patiently(read)
            cost = document.accounting
            vectors = [(chunk.index, chunk.characters, chunk.vector) for chunk in document.chunks]
    except (InvalidInput, InsufficientMemory) as error:
        return BadRow(id=row.id, code=error.code, reason=error.message, num_bytes=row.num_bytes)
    except LLNError as error:  # perhaps not the row's fault, so the job ends
        message = f"row {shown(str(row.id))}: {error.message}"
        raise error.about(error.param, message=message) from error
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
