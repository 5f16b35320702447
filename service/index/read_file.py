"""Reads a file's text: whole, or from its record, where it changed."""

from __future__ import annotations

from engine.async_engine import AsyncEngine
from engine.errors import InvalidInput
from engine.living_types import LivingChunk, LivingEmbedding, RecordPrecision
from engine.text.truncation import never_truncated
from engine.types import DocumentEmbedding, HeadingPlan
from service.index.rows import IndexedFile
from service.index.schema import Recipe
from service.index.store import FileState, IndexStore
from service.readers.extracted import Extracted

CHUNK_TOKENS = 256

LEAST_CHARACTERS = 8_192
"""Shorter texts have one segment or two: there is next to nothing to be spared, and short texts
share batches."""

PRECISION: RecordPrecision = "float16"
"""Half the size; what it costs in cosine is far below what an edit moves."""


class FileReader:
    """Embeds the texts of an index's files."""

    def __init__(self, store: IndexStore, engine: AsyncEngine, max_staleness: float | None) -> None:
        self._store = store
        self._engine = engine
        self._max_staleness = max_staleness
        self._plan = plan_of(store.recipe)

    async def read(self, extracted: Extracted, before: FileState | None) -> DocumentEmbedding:
        """The document, updated from its record if the index has one."""
        text, title = extracted.text, extracted.title
        if not self._store.recipe.records or len(text) < LEAST_CHARACTERS:
            with never_truncated():
                return await self._engine.embed_document(text, chunks=self._plan, title=title)
        record = None if before is None else self._store.record(before)
        if record is not None:
            try:
                return await self._engine.update_document(
                    *(record, text),
                    chunks=self._plan,
                    title=title or "",  # not the record's, if the file has none any more
                    max_staleness=self._max_staleness,
                )
            except InvalidInput as error:
                # Made by another version or precision, or damaged: it is of no use.
                if error.param != "record":
                    raise
        return await self._engine.embed_living_document(
            text, chunks=self._plan, title=title, precision=PRECISION
        )


def plan_of(recipe: Recipe) -> HeadingPlan:
    """How the texts of an index are cut into passages."""
    return HeadingPlan(max_tokens=recipe.chunk_tokens, context=recipe.context)


def record_of(embedded: DocumentEmbedding) -> bytes | None:
    """What the index keeps for a file's next update. A single segment is always read whole."""
    if isinstance(embedded, LivingEmbedding) and embedded.segments > 1:
        return embedded.record
    return None


def previous_of(file: IndexedFile) -> list[int | None]:
    """The number that each chunk had in the file's record."""
    return [one.previous if isinstance(one, LivingChunk) else None for one in file.chunks]
