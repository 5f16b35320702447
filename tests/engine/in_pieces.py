"""Documents that come in pieces, as several tests send them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from engine.async_engine import AsyncEngine
from engine.config import EngineConfig
from engine.execution.document_stream import DocumentStream
from engine.execution.documents import DocumentReader
from engine.execution.inputs import PreparedText
from engine.model.embedding_model import EmbeddingModel
from engine.scheduling.observer import EngineObserver
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


def serve(
    model: EmbeddingModel,
    work: Callable[[AsyncEngine], Awaitable[Result]],
    observer: EngineObserver | None = None,
) -> Result:
    async def run() -> Result:
        config = EngineConfig(device="cpu")
        async with AsyncEngine([model], config=config, observer=observer) as engine:
            return await work(engine)

    return asyncio.run(run())


async def feed_all(document: DocumentStream, pieces: Sequence[bytes | str]) -> DocumentEmbedding:
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
