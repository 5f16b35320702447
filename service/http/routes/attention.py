"""What attention does with a text.

POST /v1/diagnostics measures every head, POST /v1/attention/map shows where one head looks, as
numbers or as a picture, and POST /v1/structure finds the parts of a document.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
from fastapi import APIRouter, Depends, Response
from numpy.typing import NDArray

from engine.attention_types import AttentionMap, Diagnosis, HeadValues, Segment, Topic, TopicToken
from engine.diagnostics import instrument_infos
from service.fairness import cooperatively
from service.http.dependencies import Engine, Record, TimeoutS
from service.http.json_request import JsonRoute
from service.http.json_response import (
    WrittenJson,
    accounting,
    dump_floats,
    dump_list,
    json_response,
    server_timing,
    span,
)
from service.http.map_png import map_picture
from service.http.query import query_known
from service.http.schemas.attention import (
    AttentionMapBody,
    DiagnosticsBody,
    Statistic,
    StructureBody,
)
from service.http.schemas.responses.attention import AttentionMapAnswer, StructureAnswer
from service.http.schemas.responses.diagnostics import DiagnosticsAnswer, InstrumentList

router = APIRouter(route_class=JsonRoute, tags=["diagnostics"], dependencies=[Depends(query_known)])


@router.get(
    "/v1/diagnostics/instruments", response_model=InstrumentList, summary="What can be measured"
)
async def instruments() -> Response:
    """Every instrument, in the order in which a diagnosis answers."""
    data = [asdict(one) for one in instrument_infos()]
    return json_response({"object": "list", "data": data})


@router.post(
    "/v1/diagnostics", response_model=DiagnosticsAnswer, summary="Diagnose a text's attention"
)
async def diagnostics(
    body: DiagnosticsBody, engine: Engine, timeout_s: TimeoutS, record: Record
) -> Response:
    """Each instrument's value for each layer and head, with its method, error and cost."""
    found = await engine.diagnose(
        body.text,
        document=body.document,
        model=body.model,
        layers=body.layers,
        heads=body.heads,
        instruments=body.instruments,
        mode=body.mode,
        sampled_rows=body.sampled_rows,
        seed=body.seed,
        quantiles=body.quantiles,
        timeout_s=timeout_s,
    )
    record.model, record.tokens = found.model, found.tokens
    return json_response(diagnosis_document(found), headers=server_timing([found.accounting]))


def diagnosis_document(found: Diagnosis) -> dict[str, Any]:
    return {
        "object": "diagnosis",
        "model": found.model,
        "tokens": found.tokens,
        "mode": found.mode,
        "sampled_rows": found.sampled_rows,
        "rows_read": found.rows_read,
        "seed": found.seed,
        "quantiles": found.quantiles,
        "layers": found.layers,
        "heads": found.heads,
        "attention": found.attention,
        "notes": found.notes,
        "instruments": {reading.instrument: _reading(reading) for reading in found.instruments},
        "left_out": {skipped.instrument: skipped.reason for skipped in found.left_out},
        "accounting": accounting(found.accounting),
    }


def _reading(reading: HeadValues) -> dict[str, Any]:
    return {
        "unit": reading.unit,
        "scope": reading.scope,
        "method": reading.method,
        "values": reading.values,  # [layers][heads], [layers][1] of whole layers
        "error": reading.error,
        "labels": reading.labels,  # like values, of instruments that name heads
        "beside": {
            extra.name: {"unit": extra.unit, "values": extra.values, "error": extra.error}
            for extra in reading.beside
        },
        "cost": reading.cost,
        "compute_s": reading.compute_s,
    }


@router.post(
    "/v1/attention/map",
    response_model=AttentionMapAnswer,
    responses={200: {"content": {"image/png": {}}}},
    summary="Map a head's attention",
)
async def attention_map(
    body: AttentionMapBody, engine: Engine, timeout_s: TimeoutS, record: Record
) -> Response:
    """A head's attention in cells, for a window of any size of a text of any length.

    `document` in the answer stands for the text in later requests. It expires when it is not used.
    """
    found = await engine.attention_map(
        body.text,
        document=body.document,
        model=body.model,
        options=body.options(),
        timeout_s=timeout_s,
    )
    record.model, record.tokens = found.model, found.tokens
    timing = f"queue;dur={found.queue_s * 1000:.1f}, compute;dur={found.compute_s * 1000:.1f}"
    headers = {"server-timing": timing}
    if body.format == "png":
        picture = await asyncio.to_thread(map_picture, found, height=body.height, width=body.width)
        headers |= {"x-lln-document": found.document}
        return Response(picture, headers=headers, media_type="image/png")
    return json_response(await _map_document(found, body), headers=headers)


async def _map_document(found: AttentionMap, body: AttentionMapBody) -> dict[str, Any]:
    values = await asyncio.to_thread(_cells, found, body.statistic)
    topics = None if found.topics is None else await dump_list(map(_topic, found.topics))
    return {
        "object": "attention_map",
        "model": found.model,
        "document": found.document,
        "tokens": found.tokens,
        "layer": found.layer,
        "head": found.head,
        "attention": found.attention,
        "rows": span(found.rows),
        "columns": span(found.columns),
        "row_edges": found.row_edges,
        "column_edges": found.column_edges,
        "statistic": body.statistic,
        "values": await dump_floats(values, body.encoding_format),
        "links": [link._asdict() for link in found.links],
        "topics": topics,
    }


def _cells(found: AttentionMap, statistic: Statistic) -> NDArray[np.float32]:
    """The statistic of each cell, [rows, columns]."""
    return np.ascontiguousarray(getattr(found, statistic), dtype=np.float32)


def _topic(topic: Topic) -> dict[str, Any]:
    return {
        "channel": topic.channel,
        "share": topic.share,
        "effective_tokens": topic.effective_tokens,
        "tokens": [_topic_token(token) for token in topic.tokens],
        "users": [_topic_token(token) for token in topic.users],
    }


def _topic_token(token: TopicToken) -> dict[str, Any]:
    return {
        "index": token.index,
        "token": token.token,
        "characters": None if token.characters is None else span(token.characters),
        "weight": token.weight,
    }


@router.post("/v1/structure", response_model=StructureAnswer, summary="Find a document's parts")
async def structure(
    body: StructureBody, engine: Engine, timeout_s: TimeoutS, record: Record
) -> Response:
    """Nested segments at several scales. They begin at the document's headings, and else where the
    subject changes: where the text before and after has the least cosine similarity, by the mean
    states at the input of `layer` and by the vectors of passages read alone."""
    found = await engine.structure(
        body.text,
        document=body.document,
        model=body.model,
        scales=body.scales,
        timeout_s=timeout_s,
    )
    record.model, record.tokens = found.model, found.tokens
    return json_response(
        {
            "object": "structure",
            "model": found.model,
            "document": found.document,
            "tokens": found.tokens,
            "layer": found.layer,
            "scales": found.scales,
            "segments": await _segments(found.segments),
        }
    )


async def _segments(segments: Sequence[Segment]) -> WrittenJson:
    return await dump_list([await _segment(segment) async for segment in cooperatively(segments)])


async def _segment(segment: Segment) -> dict[str, Any]:
    return {
        "level": segment.level,
        "tokens": span(segment.tokens),
        "characters": span(segment.characters),
        "begins": segment.begins,
        "children": await _segments(segment.children),
    }
