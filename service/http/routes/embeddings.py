"""POST /v1/embeddings: OpenAI's contract. Its clients work unchanged."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from fastapi import APIRouter, Response

from engine.types import Embedding
from service.http.dependencies import Engine, Record, TimeoutS
from service.http.json_request import JsonRoute
from service.http.json_response import (
    EncodingFormat,
    dump_list,
    encode_vector,
    json_response,
    server_timing,
    span,
    usage,
)
from service.http.schemas.embedding import EmbeddingsBody
from service.http.schemas.fields import as_inputs
from service.http.schemas.responses import EmbeddingsAnswer

router = APIRouter(route_class=JsonRoute, tags=["embeddings"])


@router.post("/v1/embeddings", response_model=EmbeddingsAnswer, summary="Embed texts")
async def embeddings(
    body: EmbeddingsBody, engine: Engine, timeout_s: TimeoutS, record: Record
) -> Response:
    """One vector for each text, in order. Texts are strings or lists of token ids."""
    model = record.model = engine.resolve(body.model).name
    found = await engine.embed(
        as_inputs(body.input, "input"),
        model=body.model,
        options=body.options(),
        timeout_s=timeout_s,
    )
    tokens = record.tokens = sum(embedding.accounting.tokens_embedded for embedding in found)
    document = {
        "object": "list",
        "data": await dump_list(_items(found, body.encoding_format)),
        "model": body.model or model,
        "usage": usage(tokens),
    }
    timing = server_timing([embedding.accounting for embedding in found])
    return json_response(document, headers=timing)


def _items(found: Sequence[Embedding], encoding: EncodingFormat) -> Iterator[dict[str, Any]]:
    for index, embedding in enumerate(found):
        yield {
            "object": "embedding",
            "index": index,
            "embedding": encode_vector(embedding.vector, encoding),
            **_notes(embedding),
        }


def _notes(embedding: Embedding) -> dict[str, Any]:
    """What OpenAI's format has no field for: that a text was cut, and a matrix's shape."""
    cost = embedding.accounting
    notes: dict[str, Any] = {}
    if cost.tokens_embedded < cost.tokens:
        notes = {
            "tokens": cost.tokens,
            "tokens_embedded": cost.tokens_embedded,
            "dropped": None if cost.dropped is None else span(cost.dropped),
        }
    if embedding.vector.ndim > 1:
        notes["shape"] = list(embedding.vector.shape)
    return {"lln": notes} if notes else {}
