"""Converts requests to the engine's types. All defaults are the engine's."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from google.protobuf.message import Message

from engine.errors import InvalidInput
from engine.types import (
    OF_ALL_CHUNKS,
    Chunking,
    ChunkPlan,
    EmbedOptions,
    HeadingPlan,
    Priority,
    SentencePlan,
    Span,
    SpanPlan,
    TextInput,
    Truncate,
)
from service.errors import InvalidField
from service.fairness import cooperatively
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
        raise unknown_number("truncate", number, embeddings_pb2.Truncate.keys())
    return _TRUNCATE[number]


def _priority(number: int) -> Priority:
    if number not in _PRIORITY:
        raise unknown_number("priority", number, embeddings_pb2.Priority.keys())
    return _PRIORITY[number]


def unknown_number(field: str, number: int, names: Sequence[str]) -> InvalidField:
    choices = ", ".join(names)
    return InvalidField(
        f"{field} must be one of {choices}, got {number}",
        param=field,
        limit=choices,
        actual=number,
    )


async def chunking(message: embeddings_pb2.Chunking) -> Chunking | None:
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
            given = cooperatively(message.spans.spans)
            spans = [Span(span.start, span.end) async for span in given]
            return SpanPlan(spans=tuple(spans), **shared)
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
