"""What answers say of a document: its events, its chunks, and what belongs to a record."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from numpy.typing import NDArray

from engine.living_types import LivingChunk, LivingEmbedding
from engine.types import Chunk, ChunksReady, DocumentChunks, DocumentEmbedding, Progress
from service.documents import Accepted, Event
from service.http.json_response import VectorForm, accounting, span, usage
from service.http.records import encoded


def event_fields(event: Event, form: VectorForm) -> dict[str, Any]:
    if isinstance(event, Accepted):
        return {"model": event.model, "tokens": event.tokens}
    if isinstance(event, Progress):
        return {
            "tokens_done": event.tokens_done,
            "tokens_total": event.tokens_total,
            "seconds_left": event.seconds_left,
        }
    if isinstance(event, ChunksReady):
        return {"chunks": list(chunk_fields(event.chunks, form))}
    found = event.embedding
    return {
        "model": event.model,
        "vector": own_vector(found, form),
        "num_chunks": len(found.chunks),
        "accounting": accounting(found.accounting),
        "usage": usage(found.accounting.tokens_embedded),
        **living_fields(found),
    }


def own_vector(found: DocumentChunks, form: VectorForm) -> NDArray[Any] | str | None:
    """The document's own vector, if it was asked for."""
    return form.write(found.vector) if isinstance(found, DocumentEmbedding) else None


def living_fields(found: DocumentChunks) -> dict[str, Any]:
    """What an answer with a record has besides."""
    if not isinstance(found, LivingEmbedding):
        return {}
    return {
        "record": encoded(found.record),
        "tokens_read": found.tokens_read,
        "segments": found.segments,
        "segments_read": found.segments_read,
        "staleness": found.staleness,
        "gone": found.gone,
        "rounds": found.rounds,
        "sealed": found.sealed,
        "sealed_staleness": found.sealed_staleness,
    }


def chunk_fields(chunks: Iterable[Chunk], form: VectorForm) -> Iterator[dict[str, Any]]:
    for chunk in chunks:
        yield {
            "index": chunk.index,
            "tokens": span(chunk.tokens),
            "characters": span(chunk.characters),
            "headings": chunk.headings,
            "vector": form.write(chunk.vector),
            **_living_chunk(chunk),
        }


def _living_chunk(chunk: Chunk) -> dict[str, Any]:
    if not isinstance(chunk, LivingChunk):
        return {}
    return {"previous": chunk.previous, "staleness": chunk.staleness}
