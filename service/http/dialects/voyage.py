"""Voyage: its fields on /v1/embeddings and /v1/rerank, and POST /v1/contextualizedembeddings."""

from __future__ import annotations

from fastapi import Response
from pydantic import Field

from engine.errors import InvalidInput
from engine.types import RankOptions
from service.http.dialects.call import Call
from service.http.dialects.dialect import Claim, Dialect
from service.http.dialects.dropped import dropped_headers, dropped_usage
from service.http.dialects.ranking import rank
from service.http.dialects.shapes import with_detail
from service.http.dialects.voyage_contextual import router
from service.http.dialects.voyage_fields import VectorFields
from service.http.json_response import dump_list, json_response, server_timing
from service.http.schemas.fields import AtLeastOne, Body, Input, Text, as_inputs


class EmbeddingsBody(VectorFields):
    """Voyage's request for one vector per text."""

    input: Input
    truncation: bool | None = Field(
        True, description="Cut texts beyond the model's limit instead of refusing them."
    )


async def embeddings(body: EmbeddingsBody, call: Call) -> Response:
    call.resolve(body.model)
    form = body.form(call.engine)
    options = body.options(call.engine, truncation=body.truncation is not False)
    inputs = as_inputs(body.input, "input")
    found = await call.embed(inputs, body.model, options, {"dimensions": "output_dimension"})
    items = (
        {"object": "embedding", "embedding": form.write(embedding.vector), "index": index}
        for index, embedding in enumerate(found.found)
    )
    document = {
        "object": "list",
        "data": await dump_list(items),
        "model": body.model or call.record.model,
        "usage": {"total_tokens": found.tokens, **dropped_usage(found.costs)},
    }
    return json_response(document, headers=found.headers)


class RerankBody(Body):
    """Voyage's request to rank documents."""

    query: Text
    documents: list[Text]
    model: str | None = None
    top_k: AtLeastOne | None = None
    return_documents: bool | None = False
    truncation: bool | None = True


async def rerank(body: RerankBody, call: Call) -> Response:
    if body.top_k is not None and body.top_k < 1:
        raise InvalidInput(
            f"top_k must be at least 1, got {body.top_k}",
            param="top_k",
            limit=1,
            actual=body.top_k,
        )
    options = RankOptions(truncate="error" if body.truncation is False else "end")
    names = {"texts": "documents"}
    found = await rank(call, body.query, body.documents, body.model, options, names)
    items = (
        {"relevance_score": one.relevance, "index": one.index}
        | ({"document": body.documents[one.index]} if body.return_documents else {})
        for one in found.texts[: body.top_k]
    )
    costs = found.accountings
    document = {
        "object": "list",
        "data": await dump_list(items),
        "model": body.model or call.record.model,
        "usage": {"total_tokens": found.tokens, **dropped_usage(costs)},
    }
    return json_response(document, headers=server_timing(costs) | dropped_headers(costs[1:]))


DIALECT = Dialect(
    name="voyage",
    router=router,
    claims=(
        Claim(
            path="/v1/embeddings",
            endpoint=embeddings,
            fields=frozenset({"input_type", "output_dimension", "truncation"}),
        ),
        Claim(path="/v1/rerank", endpoint=rerank, fields=frozenset({"top_k", "truncation"})),
    ),
    error_shape=with_detail,
)
