"""Documents with records over gRPC: text and record arrive in pieces, and go back in pieces."""

from __future__ import annotations

from collections.abc import AsyncIterable, Callable, Sequence
from functools import partial
from typing import NamedTuple, get_args

from engine.async_engine import AsyncEngine
from engine.errors import InvalidInput
from engine.living_types import LivingEmbedding, RecordPrecision
from engine.text.unicode import Utf8Reader
from service.documents import (
    DocumentRequest,
    Event,
    Finished,
    LivingRequest,
    embed_living,
    stream_events,
)
from service.errors import BodyTooLarge, InvalidField
from service.grpc.answers import document_event, record_pieces
from service.grpc.context import Context, write
from service.grpc.vectors import VectorPacker
from service.pb.lln.v1 import embeddings_pb2 as pb

_CHOSEN_WITH_FIRST = ("record_precision", "fold")
_OF_RECORDS = (*_CHOSEN_WITH_FIRST, "max_staleness", "exact")


class Arrived(NamedTuple):
    """A document and its record, whole."""

    text: str
    record: bytes | None


def has_record(first: pb.EmbedDocumentRequest) -> bool:
    return first.open.with_record or bool(first.record)


def check_without_record(options: pb.DocumentOptions) -> None:
    """Raises for an option that only documents with a record have."""
    _refuse(options, _OF_RECORDS, "is that of a record, and none is asked for; set with_record")


def _refuse(options: pb.DocumentOptions, names: Sequence[str], why: str) -> None:
    for field, value in options.ListFields():
        if field.name in names:
            raise InvalidInput(
                f"{field.name} {why}", code="unknown_field", param=field.name, actual=value
            )


async def arrived(
    first: pb.EmbedDocumentRequest,
    others: AsyncIterable[pb.EmbedDocumentRequest],
    *,
    max_bytes: int,
    count: Callable[[int], None],
) -> Arrived:
    """All pieces of the text and of the record, each counted as it arrives. Raises as soon as they
    are too large together."""
    reader, texts, record = Utf8Reader(), [], bytearray()
    num_bytes = 0

    def take(message: pb.EmbedDocumentRequest) -> None:
        nonlocal num_bytes
        size = len(message.text) + len(message.record)
        num_bytes += size
        if num_bytes > max_bytes:
            raise BodyTooLarge(
                f"the text and its record have more than {max_bytes} bytes, which is the limit",
                limit=max_bytes,
                actual=num_bytes,
            )
        count(size)
        texts.append(reader.read(message.text))
        record.extend(message.record)

    take(first)
    async for message in others:
        if message.HasField("open"):
            raise InvalidField("only the first message may have the field open", param="open")
        take(message)
    reader.finish()
    return Arrived("".join(texts), bytes(record) or None)


async def answer_living(
    engine: AsyncEngine,
    request: DocumentRequest,
    options: pb.DocumentOptions,
    document: Arrived,
    context: Context,
    packer: VectorPacker,
) -> LivingEmbedding:
    """Writes the events of a document with a record, the record before the result."""
    if document.record is not None:
        _refuse(options, _CHOSEN_WITH_FIRST, "is chosen with the first record, which keeps it")
    living = LivingRequest(
        model=request.model,
        options=request.options,
        chunking=request.chunking,
        title=request.title,
        timeout_s=request.timeout_s,
        vector=request.vector,
        text=document.text,
        record=document.record,
        precision=_precision(options),
        fold=options.fold,
        max_staleness=options.max_staleness if options.HasField("max_staleness") else None,
        exact=options.exact,
    )

    async def send(event: Event) -> None:
        if isinstance(event, Finished) and isinstance(event.embedding, LivingEmbedding):
            for piece in record_pieces(event.embedding.record):
                await write(context, piece)
        await write(context, document_event(event, packer))

    return await stream_events(
        partial(embed_living, engine, living),
        send,
        timeout_s=request.timeout_s,
        result_model=request.model,
    )


def _precision(options: pb.DocumentOptions) -> RecordPrecision:
    if not options.HasField("record_precision"):
        return "float32"
    known: tuple[RecordPrecision, ...] = get_args(RecordPrecision)
    for name in known:
        if name == options.record_precision:
            return name
    raise InvalidField(
        f"record_precision must be one of {', '.join(known)}, got {options.record_precision!r}",
        param="record_precision",
        limit=", ".join(known),
        actual=options.record_precision,
    )
