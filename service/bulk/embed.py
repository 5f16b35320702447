"""From rows of a corpus to their vectors, with one engine."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator

from engine.async_engine import AsyncEngine
from engine.errors import InsufficientMemory, InvalidInput
from engine.types import ModelInfo, Span, Vector
from service.bulk.parts import EmbeddedPart, Part, embedded_part
from service.bulk.rows import BadRow, EmbeddedRow, InputRow, RowOptions, TextRow, VectorRow
from service.in_order import in_order

_MAX_CHARACTERS_AT_ONCE = 400_000
_ROW_WEIGHT = 1_000  # what a row weighs besides its characters


class OneEngine:
    """Embeds parts in this process."""

    def __init__(self, engine: AsyncEngine, model: str) -> None:
        self._engine = engine
        self._model = model

    @property
    def model(self) -> ModelInfo:
        return self._engine.resolve(self._model)

    async def embed(self, parts: Iterable[Part], how: RowOptions) -> AsyncIterator[EmbeddedPart]:
        """The parts in their order. The rows of the next begin while those of one end."""
        dim = how.options.dimensions or self.model.dim
        results: list[EmbeddedRow] = []

        def rows() -> Iterator[tuple[Part, InputRow]]:
            for part in parts:
                yield from ((part, row) for row in part.rows)

        async def embed(item: tuple[Part, InputRow]) -> EmbeddedRow:
            return await embed_row(item[1], self._engine, how)

        async for (part, _), result in in_order(
            rows(), embed, weigh=lambda item: _weight(item[1]), max_weight=_MAX_CHARACTERS_AT_ONCE
        ):
            results.append(result)
            if len(results) == len(part.rows):
                yield embedded_part(part, results, dim)
                results = []


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
