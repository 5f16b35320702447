"""lln.v1.Diagnostics: what each attention head does with a text."""

from __future__ import annotations

from dataclasses import asdict

import numpy as np

from engine.async_engine import AsyncEngine
from engine.attention_types import (
    SAMPLED_ROWS,
    AttentionMap,
    Diagnosis,
    ExtraReading,
    HeadValues,
    MapOptions,
    Nested,
    Topic,
    TopicToken,
)
from engine.diagnostics import instrument_infos
from engine.types import Span
from service.fairness import cooperatively
from service.grpc.context import Context, timeout_s
from service.grpc.handlers import current_record
from service.grpc.requests import model_name
from service.pb.lln.v1 import diagnostics_pb2 as pb
from service.settings import Settings


class DiagnosticsServicer:
    def __init__(self, engine: AsyncEngine, settings: Settings) -> None:
        self._engine = engine
        self._settings = settings

    async def Diagnose(self, request: pb.DiagnoseRequest, context: Context) -> pb.DiagnoseResponse:
        diagnosis = await self._engine.diagnose(
            request.text,
            model=model_name(request),
            layers=list(request.layers) or None,
            heads=list(request.heads) or None,
            instruments=list(request.instruments) or None,
            mode=request.mode if request.HasField("mode") else "auto",
            sampled_rows=request.sampled_rows if request.HasField("sampled_rows") else SAMPLED_ROWS,
            seed=request.seed,
            quantiles=request.quantiles,
            timeout_s=timeout_s(context, self._settings),
        )
        current_record.get().add(diagnosis.model, diagnosis.tokens)
        return diagnosis_message(diagnosis)

    async def AttentionMap(
        self, request: pb.AttentionMapRequest, context: Context
    ) -> pb.AttentionMapResponse:
        found = await self._engine.attention_map(
            request.text if request.HasField("text") else None,
            document=request.document if request.HasField("document") else None,
            model=model_name(request),
            options=map_options(request),
            timeout_s=timeout_s(context, self._settings),
        )
        current_record.get().add(found.model, found.tokens)
        return await attention_map_message(found)

    async def ListInstruments(
        self, request: pb.ListInstrumentsRequest, context: Context
    ) -> pb.ListInstrumentsResponse:
        infos = (pb.InstrumentInfo(**asdict(one)) for one in instrument_infos())
        return pb.ListInstrumentsResponse(instruments=infos)


def diagnosis_message(diagnosis: Diagnosis) -> pb.DiagnoseResponse:
    return pb.DiagnoseResponse(
        model=diagnosis.model,
        tokens=diagnosis.tokens,
        layers=diagnosis.layers,
        heads=diagnosis.heads,
        attention=diagnosis.attention,
        instruments=map(_instrument_message, diagnosis.instruments),
        queue_s=diagnosis.accounting.queue_s,
        compute_s=diagnosis.accounting.compute_s,
        mode=diagnosis.mode,
        sampled_rows=diagnosis.sampled_rows,
        rows_read=diagnosis.rows_read,
        seed=diagnosis.seed,
        quantiles=diagnosis.quantiles,
        notes=diagnosis.notes,
        left_out=(
            pb.LeftOut(instrument=one.instrument, reason=one.reason) for one in diagnosis.left_out
        ),
    )


def _instrument_message(reading: HeadValues) -> pb.Instrument:
    errors = reading.error or ((),) * len(reading.values)
    labels = reading.labels or ((),) * len(reading.values)
    return pb.Instrument(
        name=reading.instrument,
        unit=reading.unit,
        method=reading.method,
        layers=[
            pb.HeadValues(values=row, errors=row_errors, labels=row_labels)
            for row, row_errors, row_labels in zip(reading.values, errors, labels, strict=True)
        ],
        compute_s=reading.compute_s,
        scope=reading.scope,
        cost=reading.cost,
        beside=map(_extra_reading_message, reading.beside),
    )


def map_options(request: pb.AttentionMapRequest) -> MapOptions:
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


def _span(message: pb.TokenRange) -> Span:
    return Span(message.start, message.end)


async def attention_map_message(found: AttentionMap) -> pb.AttentionMapResponse:
    message = pb.AttentionMapResponse(
        model=found.model,
        document=found.document,
        tokens=found.tokens,
        attention=found.attention,
        row_edges=found.row_edges,
        column_edges=found.column_edges,
        links=(pb.Link(**link._asdict()) for link in found.links),
        topics=map(_topic_message, found.topics or ()),
        queue_s=found.queue_s,
        compute_s=found.compute_s,
    )
    async for row in cooperatively(found.mass):
        message.mass.extend(row.tolist())
    return message


def _topic_message(topic: Topic) -> pb.Topic:
    return pb.Topic(
        channel=topic.channel,
        share=topic.share,
        effective_tokens=topic.effective_tokens,
        tokens=map(_topic_token_message, topic.tokens),
        users=map(_topic_token_message, topic.users),
    )


def _topic_token_message(token: TopicToken) -> pb.TopicToken:
    message = pb.TopicToken(index=token.index, token=token.token, weight=token.weight)
    if token.characters is not None:
        message.characters.start, message.characters.end = token.characters
    return message


def _extra_reading_message(part: ExtraReading) -> pb.Beside:
    errors = part.error or (None,) * len(part.values)
    layers = (_array(*pair) for pair in zip(part.values, errors, strict=True))
    return pb.Beside(name=part.name, unit=part.unit, layers=layers)


def _array(values: Nested | None, errors: Nested | None) -> pb.Array:
    if values is None:
        return pb.Array()
    array = np.asarray(values)
    flat_errors = () if errors is None else np.asarray(errors).ravel()
    return pb.Array(shape=array.shape, values=array.ravel(), errors=flat_errors)
