"""POST /v1/attention/map: where one head looks, as numbers or as a picture."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
from fastapi import APIRouter, Response
from numpy.typing import NDArray

from engine.types import AttentionMap, Topic, TopicToken
from service.http.answers import AttentionMapAnswer
from service.http.dependencies import Engine, Record, TimeoutS
from service.http.json import JsonRoute, dump_list, json_response
from service.http.schemas import AttentionMapBody, Statistic
from service.http.vectors import dump_floats, span
from service.map_picture import map_picture

router = APIRouter(route_class=JsonRoute, tags=["diagnostics"])


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

    `document` in the answer stands for the text in later requests, until nobody asked for a while.
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
    return json_response(await _document(found, body), headers=headers)


async def _document(found: AttentionMap, body: AttentionMapBody) -> dict[str, Any]:
    values = await asyncio.to_thread(_values, found, body.statistic)
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


def _values(found: AttentionMap, statistic: Statistic) -> NDArray[np.float32]:
    """Of each cell: [rows, columns]."""
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
