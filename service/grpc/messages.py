"""Decodes protobuf messages, and converts requests, vectors and documents to and from the engine's
types. All defaults are the engine's."""

from __future__ import annotations

import math
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol, Self, TypeVar

import numpy as np
from google.protobuf.message import DecodeError, Message

from engine.errors import InvalidInput
from engine.model.quantized import check_output_dtype, quantize, range_of
from engine.steps import Steps, in_slices
from engine.types import (
    OF_ALL_CHUNKS,
    Accounting,
    Chunk,
    Chunking,
    ChunkPlan,
    ChunksReady,
    DocumentEmbedding,
    Embedding,
    EmbedOptions,
    HeadingPlan,
    LivingChunk,
    LivingEmbedding,
    ModelInfo,
    OutputDtype,
    Priority,
    Progress,
    SentencePlan,
    Span,
    SpanPlan,
    TextInput,
    Truncate,
    Vector,
)
from service.body_budget import SHORT_BODY_BYTES
from service.documents import EVENT_NAMES, Accepted, Event, Finished
from service.errors import BodyTooLarge, InvalidField, UnreadableBody
from service.grpc.wire import excess_steps
from service.pb.lln.v1 import embeddings_pb2

_TRUNCATE: dict[int, Truncate] = {
    embeddings_pb2.TRUNCATE_UNSPECIFIED: EmbedOptions.truncate,
    embeddings_pb2.TRUNCATE_ERROR: "error",
    embeddings_pb2.TRUNCATE_START: "start",
    embeddings_pb2.TRUNCATE_END: "end",
}

_PRIORITY: dict[int, Priority] = {
    embeddings_pb2.PRIORITY_UNSPECIFIED: EmbedOptions.priority,
    embeddings_pb2.PRIORITY_NORMAL: "normal",
    embeddings_pb2.PRIORITY_BACKGROUND: "background",
}

_DTYPE: dict[int, OutputDtype] = {
    embeddings_pb2.VECTOR_FORMAT_FLOAT32: "float",
    embeddings_pb2.VECTOR_FORMAT_FLOAT16: "float16",
    embeddings_pb2.VECTOR_FORMAT_INT8: "int8",
    embeddings_pb2.VECTOR_FORMAT_UINT8: "uint8",
    embeddings_pb2.VECTOR_FORMAT_BINARY: "binary",
    embeddings_pb2.VECTOR_FORMAT_UBINARY: "ubinary",
}
RECORD_PIECE_BYTES = 1_048_576
"""Well below what clients accept of one message by default."""

_SCALED = (embeddings_pb2.VECTOR_FORMAT_INT8, embeddings_pb2.VECTOR_FORMAT_UINT8)

_STEP_S = 0.004
"""How long large messages are looked at without a pause."""

MessageT = TypeVar("MessageT", bound=Message)


class Undecodable(NamedTuple):
    """Stands for a request that cannot be decoded. If a decoder raises, grpc reports UNKNOWN."""

    error: InvalidInput


def decoder(
    message: type[MessageT], max_bytes: int
) -> Callable[[bytes], Steps[MessageT | Undecodable]]:
    """Returns what decodes a message, in steps."""

    def decode(data: bytes) -> Steps[MessageT | Undecodable]:
        if len(data) > max_bytes:
            return Undecodable(
                BodyTooLarge(
                    f"the message has {len(data)} bytes, and the limit is {max_bytes}",
                    limit=max_bytes,
                    actual=len(data),
                )
            )
        if len(data) > SHORT_BODY_BYTES:
            excess = yield from in_slices(excess_steps(data, message), _STEP_S)
            if excess is not None:
                return Undecodable(
                    UnreadableBody(excess.message, code=excess.code, limit=excess.limit)
                )
            yield
        try:
            return message.FromString(data)
        except DecodeError as error:
            name = message.DESCRIPTOR.name
            return Undecodable(
                UnreadableBody(
                    f"the request is not a valid {name} message: {error}", code="invalid_message"
                )
            )

    return decode


def decoded(request: MessageT | Undecodable) -> MessageT:
    """Returns the request, or raises the error that it could not be decoded with."""
    if isinstance(request, Undecodable):
        raise request.error
    return request


async def decode_each(
    requests: AsyncIterable[MessageT | Undecodable],
) -> AsyncIterator[MessageT]:
    async for request in requests:
        yield decoded(request)


class _HasModel(Protocol):
    """Any request with `optional string model`."""

    model: str

    def HasField(self, field_name: str) -> bool: ...


def model_name(request: _HasModel) -> str | None:
    return request.model if request.HasField("model") else None


def text_inputs(messages: Iterable[embeddings_pb2.Input]) -> list[TextInput]:
    return [_text_input(message, index) for index, message in enumerate(messages)]


def _text_input(message: embeddings_pb2.Input, index: int) -> TextInput:
    form = message.WhichOneof("form")
    if form == "text":
        return message.text
    if form == "token_ids":
        return message.token_ids.ids  # millions of them are read elsewhere, in parts
    raise InvalidField(
        f"input[{index}] must have text or token_ids", param=f"input[{index}]", actual="unset"
    )


def embed_options(message: embeddings_pb2.EmbedOptions) -> EmbedOptions:
    return EmbedOptions(
        prompt_name=message.prompt_name if message.HasField("prompt_name") else None,
        dimensions=message.dimensions if message.HasField("dimensions") else None,
        normalize=message.normalize if message.HasField("normalize") else EmbedOptions.normalize,
        truncate=_truncate(message.truncate),
        priority=_priority(message.priority),
    )


def _truncate(number: int) -> Truncate:
    if number not in _TRUNCATE:
        raise _unknown_number("truncate", number, embeddings_pb2.Truncate.keys())
    return _TRUNCATE[number]


def _priority(number: int) -> Priority:
    if number not in _PRIORITY:
        raise _unknown_number("priority", number, embeddings_pb2.Priority.keys())
    return _PRIORITY[number]


class VectorPacker(NamedTuple):
    """How the vectors of one answer are packed."""

    format: embeddings_pb2.VectorFormat
    options: EmbedOptions
    model: ModelInfo

    @classmethod
    def of(cls, message: embeddings_pb2.EmbedOptions, model: ModelInfo) -> Self:
        """Raises InvalidInput for an unknown format, and one that such vectors cannot have."""
        form = message.format or embeddings_pb2.VECTOR_FORMAT_FLOAT32
        if form not in embeddings_pb2.VectorFormat.values():
            raise _unknown_number("format", message.format, embeddings_pb2.VectorFormat.keys())
        packer = cls(form, embed_options(message), model)
        if not packer._has_row_scales:
            check_output_dtype(_DTYPE[form], packer.options, model)
        return packer

    @property
    def _has_row_scales(self) -> bool:
        return self.format == embeddings_pb2.VECTOR_FORMAT_INT8 and not self.options.normalize

    def message(self, vector: Vector) -> embeddings_pb2.Vector:
        """Packs the numbers in little-endian order on every machine."""
        message = embeddings_pb2.Vector(format=self.format, shape=vector.shape)
        if self._has_row_scales:
            scales = _row_scales(vector)
            message.data = np.rint(vector / scales).astype(np.int8).tobytes()
            message.scales.extend(scales.ravel().tolist())
            return message
        codes = quantize(vector, _DTYPE[self.format], self.model)
        message.data = codes.astype(codes.dtype.newbyteorder("<"), copy=False).tobytes()
        if self.format in _SCALED:
            scale = range_of(self.model, vector.shape[-1]) / 127
            message.scales.extend([scale] * math.prod(vector.shape[:-1]))
        return message


def _unknown_number(field: str, number: int, names: Sequence[str]) -> InvalidField:
    choices = ", ".join(names)
    return InvalidField(
        f"{field} must be one of {choices}, got {number}",
        param=field,
        limit=choices,
        actual=number,
    )


def embedding_message(embedding: Embedding, packer: VectorPacker) -> embeddings_pb2.Embedding:
    return embeddings_pb2.Embedding(
        vector=packer.message(embedding.vector),
        accounting=_accounting_message(embedding.accounting),
    )


def _row_scales(vector: Vector) -> Vector:
    """Returns the int8 scale of each row: its largest number becomes 127."""
    largest: Vector = np.abs(vector).max(axis=-1, keepdims=True)
    return np.where(largest > 0, largest / np.float32(127), np.float32(1))


def chunking(message: embeddings_pb2.Chunking) -> Chunking | None:
    """Returns the chunking, or None for no chunks. Unset fields take the plan's defaults."""
    shared = {name: getattr(message, name) for name in OF_ALL_CHUNKS if message.HasField(name)}
    match message.WhichOneof("plan"):
        case "fixed":
            return ChunkPlan(**_set_fields(message.fixed), **shared)
        case "sentences":
            return SentencePlan(**_set_fields(message.sentences), **shared)
        case "headings":
            return HeadingPlan(**_set_fields(message.headings), **shared)
        case "spans":
            spans = tuple(Span(span.start, span.end) for span in message.spans.spans)
            return SpanPlan(spans=spans, **shared)
    for name, value in shared.items():
        raise InvalidInput(
            f"chunking.{name} needs a plan of chunks, and chunking has none",
            code="unknown_field",
            param=f"chunking.{name}",
            actual=value,
        )
    return None


def _set_fields(message: Message) -> dict[str, Any]:
    return {field.name: value for field, value in message.ListFields()}


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
                vector=packer.message(event.embedding.vector),
                num_chunks=len(event.embedding.chunks),
                accounting=_accounting_message(event.embedding.accounting),
                **_of_record(event.embedding),
            )


def record_pieces(record: bytes) -> Iterator[embeddings_pb2.DocumentEvent]:
    for start in range(0, len(record), RECORD_PIECE_BYTES):
        piece = embeddings_pb2.DocumentRecord(data=record[start : start + RECORD_PIECE_BYTES])
        yield embeddings_pb2.DocumentEvent(record=piece)


def _of_record(found: DocumentEmbedding) -> dict[str, Any]:
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
    )
    if accounting.dropped is not None:
        message.dropped.start, message.dropped.end = accounting.dropped
    return message
