"""POST /v1/embeddings: OpenAI's contract. Its clients work unchanged."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from fastapi import APIRouter, Response

from engine.model.quantized import check_output_dtype
from engine.types import Embedding
from service.http.dependencies import Engine, Record, TimeoutS
from service.http.json_request import JsonRoute
from service.http.json_response import (
    VectorForm,
    dump_list,
    json_response,
    server_timing,
    span,
    usage,
)
from service.http.schemas.embedding import EmbeddingsBody
from service.http.schemas.fields import as_inputs
from service.http.schemas.responses.embedding import EmbeddingsAnswer

router = APIRouter(route_class=JsonRoute, tags=["embeddings"])


@router.post("/v1/embeddings", response_model=EmbeddingsAnswer, summary="Embed texts")
async def embeddings(
    body: EmbeddingsBody, engine: Engine, timeout_s: TimeoutS, record: Record
) -> Response:
    """One vector for each text, in order. Texts are strings or lists of token ids."""
    info, options = engine.resolve(body.model), body.options()
    model = record.model = info.name
    check_output_dtype(body.output_dtype, options, info)
    found = await engine.embed(
        as_inputs(body.input, "input"), model=body.model, options=options, timeout_s=timeout_s
    )
    form = VectorForm(body.output_dtype, body.encoding_format, info)
    tokens = record.tokens = sum(embedding.accounting.tokens_embedded for embedding in found)
    document = {
        "object": "list",
        "data": await dump_list(_items(found, form)),
        "model": body.model or model,
        "usage": usage(tokens),
    }
    timing = server_timing([embedding.accounting for embedding in found])
    return json_response(document, headers=timing)


def _items(found: Sequence[Embedding], form: VectorForm) -> Iterator[dict[str, Any]]:
    for index, embedding in enumerate(found):
        yield {
            "object": "embedding",
            "index": index,
            "embedding": form.write(embedding.vector),
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
