"""Diagnoses and maps of attention as protobuf messages, and what may be asked of a map."""

from __future__ import annotations

import numpy as np

from engine.types import (
    AttentionMap,
    Beside,
    Diagnosis,
    HeadValues,
    MapOptions,
    Nested,
    Span,
    Topic,
    TopicToken,
)
from service.pb.lln.v1 import diagnostics_pb2
from service.turns import in_turns


def diagnosis_message(diagnosis: Diagnosis) -> diagnostics_pb2.DiagnoseResponse:
    return diagnostics_pb2.DiagnoseResponse(
        model=diagnosis.model,
        tokens=diagnosis.tokens,
        layers=diagnosis.layers,
        heads=diagnosis.heads,
        attention=diagnosis.attention,
        instruments=map(_instrument_message, diagnosis.instruments),
        queue_s=diagnosis.accounting.queue_s,
        compute_s=diagnosis.accounting.compute_s,
        mode=diagnosis.mode,
        left_out=(
            diagnostics_pb2.LeftOut(instrument=one.instrument, reason=one.reason)
            for one in diagnosis.left_out
        ),
    )


def _instrument_message(reading: HeadValues) -> diagnostics_pb2.Instrument:
    errors = reading.error or ((),) * len(reading.values)
    return diagnostics_pb2.Instrument(
        name=reading.instrument,
        unit=reading.unit,
        method=reading.method,
        layers=[
            diagnostics_pb2.HeadValues(values=row, errors=row_errors)
            for row, row_errors in zip(reading.values, errors, strict=True)
        ],
        compute_s=reading.compute_s,
        scope=reading.scope,
        cost=reading.cost,
        beside=map(_beside_message, reading.beside),
    )


def map_options(request: diagnostics_pb2.AttentionMapRequest) -> MapOptions:
    has = request.HasField
    return MapOptions(
        layer=request.layer,
        head=request.head,
        rows=_span(request.rows) if has("rows") else None,
        columns=_span(request.columns) if has("columns") else None,
        height=request.height if has("height") else MapOptions.height,
        width=request.width if has("width") else MapOptions.width,
        links=request.links,
        topics=request.topics,
        topic_tokens=request.topic_tokens if has("topic_tokens") else MapOptions.topic_tokens,
    )


def _span(message: diagnostics_pb2.TokenRange) -> Span:
    return Span(message.start, message.end)


async def attention_map_message(found: AttentionMap) -> diagnostics_pb2.AttentionMapResponse:
    message = diagnostics_pb2.AttentionMapResponse(
        model=found.model,
        document=found.document,
        tokens=found.tokens,
        attention=found.attention,
        row_edges=found.row_edges,
        column_edges=found.column_edges,
        links=(diagnostics_pb2.Link(**link._asdict()) for link in found.links),
        topics=map(_topic_message, found.topics or ()),
        queue_s=found.queue_s,
        compute_s=found.compute_s,
    )
    async for row in in_turns(found.mass):
        message.mass.extend(row.tolist())
    return message


def _topic_message(topic: Topic) -> diagnostics_pb2.Topic:
    return diagnostics_pb2.Topic(
        channel=topic.channel,
        share=topic.share,
        effective_tokens=topic.effective_tokens,
        tokens=map(_topic_token_message, topic.tokens),
        users=map(_topic_token_message, topic.users),
    )


def _topic_token_message(token: TopicToken) -> diagnostics_pb2.TopicToken:
    message = diagnostics_pb2.TopicToken(index=token.index, token=token.token, weight=token.weight)
    if token.characters is not None:
        message.characters.start, message.characters.end = token.characters
    return message


def _beside_message(part: Beside) -> diagnostics_pb2.Beside:
    errors = part.error or (None,) * len(part.values)
    layers = (_array(*pair) for pair in zip(part.values, errors, strict=True))
    return diagnostics_pb2.Beside(name=part.name, unit=part.unit, layers=layers)


def _array(values: Nested | None, errors: Nested | None) -> diagnostics_pb2.Array:
    if values is None:
        return diagnostics_pb2.Array()
    array = np.asarray(values)
    flat_errors = () if errors is None else np.asarray(errors).ravel()
    return diagnostics_pb2.Array(shape=array.shape, values=array.ravel(), errors=flat_errors)
