"""Converts embeddings and the events of documents to messages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from engine.living_types import LivingChunk, LivingEmbedding
from engine.types import (
    Accounting,
    Chunk,
    ChunksReady,
    DocumentChunks,
    DocumentEmbedding,
    Embedding,
    Progress,
)
from service.documents import EVENT_NAMES, Accepted, Event, Finished
from service.grpc.vectors import VectorPacker
from service.pb.lln.v1 import embeddings_pb2

RECORD_PIECE_BYTES = 1_048_576
"""Well below what clients accept of one message by default."""


def embedding_message(embedding: Embedding, packer: VectorPacker) -> embeddings_pb2.Embedding:
    return embeddings_pb2.Embedding(
        vector=packer.message(embedding.vector),
        accounting=_accounting_message(embedding.accounting),
    )


def document_event(event: Event, packer: VectorPacker) -> embeddings_pb2.DocumentEvent:
    return embeddings_pb2.DocumentEvent(**{EVENT_NAMES[type(event)]: _event_part(event, packer)})


def _event_part(event: Event, packer: VectorPacker) -> Any:
    match event:
        case Accepted():
            return embeddings_pb2.DocumentAccepted(model=event.model, tokens=event.tokens)
        case Progress():
            return embeddings_pb2.DocumentProgress(
                tokens_done=event.tokens_done,
                tokens_total=event.tokens_total,
                seconds_left=event.seconds_left,
            )
        case ChunksReady():
            chunks = (_chunk_message(chunk, packer) for chunk in event.chunks)
            return embeddings_pb2.DocumentChunks(chunks=chunks)
        case Finished():
            return embeddings_pb2.DocumentResult(
                model=event.model,
                vector=_own_vector(event.embedding, packer),
                num_chunks=len(event.embedding.chunks),
                accounting=_accounting_message(event.embedding.accounting),
                **_of_record(event.embedding),
            )


def record_pieces(record: bytes) -> Iterator[embeddings_pb2.DocumentEvent]:
    for start in range(0, len(record), RECORD_PIECE_BYTES):
        piece = embeddings_pb2.DocumentRecord(data=record[start : start + RECORD_PIECE_BYTES])
        yield embeddings_pb2.DocumentEvent(record=piece)


def _own_vector(found: DocumentChunks, packer: VectorPacker) -> embeddings_pb2.Vector | None:
    """The document's own vector, if it was asked for."""
    return packer.message(found.vector) if isinstance(found, DocumentEmbedding) else None


def _of_record(found: DocumentChunks) -> dict[str, Any]:
    """What a result has besides if the document has a record."""
    if not isinstance(found, LivingEmbedding):
        return {}
    names = (
        *("tokens_read", "segments", "segments_read", "staleness", "gone", "rounds"),
        *("sealed", "sealed_staleness"),
    )
    return {name: getattr(found, name) for name in names}


def _chunk_message(chunk: Chunk, packer: VectorPacker) -> embeddings_pb2.Chunk:
    return embeddings_pb2.Chunk(
        index=chunk.index,
        tokens=embeddings_pb2.TokenSpan(start=chunk.tokens.start, end=chunk.tokens.end),
        characters=embeddings_pb2.CharacterSpan(
            start=chunk.characters.start, end=chunk.characters.end
        ),
        headings=chunk.headings,
        vector=packer.message(chunk.vector),
        previous=chunk.previous if isinstance(chunk, LivingChunk) else None,
        staleness=chunk.staleness if isinstance(chunk, LivingChunk) else None,
    )


def _accounting_message(accounting: Accounting) -> embeddings_pb2.Accounting:
    message = embeddings_pb2.Accounting(
        tokens=accounting.tokens,
        tokens_embedded=accounting.tokens_embedded,
        queue_s=accounting.queue_s,
        compute_s=accounting.compute_s,
        tokens_alone=accounting.tokens_alone,
        tokens_saved=accounting.tokens_saved,
    )
    if accounting.dropped is not None:
        message.dropped.start, message.dropped.end = accounting.dropped
    return message
