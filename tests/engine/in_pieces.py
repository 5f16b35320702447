"""Documents that come in pieces, as several tests send them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from engine.async_engine import AsyncEngine
from engine.execution.document_stream import DocumentStream
from engine.execution.documents import DocumentReader
from engine.execution.inputs import PreparedText
from engine.model.embedding_model import EmbeddingModel
from engine.types import (
    Chunking,
    DocumentEmbedding,
    DocumentEvent,
    EmbedOptions,
)

Result = TypeVar("Result")

MEGABYTE = 1_048_576


def read(
    model: EmbeddingModel,
    pieces: list[str],
    options: EmbedOptions = EmbedOptions(),  # noqa: B008  # frozen
    plan: Chunking | None = None,
) -> PreparedText:
    reader = DocumentReader(model, options, plan, in_pieces=True)
    for piece in pieces:
        reader.feed(piece)
    return reader.finish()


async def feed_all(document: DocumentStream[Result], pieces: Sequence[bytes | str]) -> Result:
    for piece in pieces:
        await document.feed(piece)
    return await document.finish()


async def stream(
    engine: AsyncEngine,
    text: str,
    size: int,
    *,
    chunks: Chunking | None = None,
    on_event: Callable[[DocumentEvent], None] | None = None,
) -> DocumentEmbedding:
    document = engine.open_document(chunks=chunks, on_event=on_event)
    data = text.encode()
    return await feed_all(
        document, [data[start : start + size] for start in range(0, len(data), size)]
    )
