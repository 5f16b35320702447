"""POST /v1/documents: one long document as a vector, and as late chunks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fastapi import APIRouter, Response

from engine.types import DocumentEmbedding
from service.http.answers import DocumentAnswer
from service.http.dependencies import Engine, Record, TimeoutS
from service.http.json import JsonRoute, dump_list, json_response
from service.http.schemas import DocumentBody, EncodingFormat
from service.http.vectors import accounting, encode_vector, server_timing, span, usage

router = APIRouter(route_class=JsonRoute, tags=["embeddings"])


@router.post("/v1/documents", response_model=DocumentAnswer, summary="Embed one document")
async def documents(
    body: DocumentBody, engine: Engine, timeout_s: TimeoutS, record: Record
) -> Response:
    """A vector of the whole document and, if asked, one of each passage in its light."""
    model = record.model = engine.resolve(body.model).name
    found = await engine.embed_document(
        body.text,
        model=model,
        chunks=body.chunking.plan(),
        options=body.options(),
        timeout_s=timeout_s,
    )
    tokens = record.tokens = found.accounting.tokens_embedded
    document = {
        "object": "document_embedding",
        "model": body.model or model,
        "vector": encode_vector(found.vector, body.encoding_format),
        "chunks": await dump_list(_chunks(found, body.encoding_format)),
        "accounting": accounting(found.accounting),
        "usage": usage(tokens),
    }
    return json_response(document, headers=server_timing([found.accounting]))


def _chunks(found: DocumentEmbedding, encoding: EncodingFormat) -> Iterator[dict[str, Any]]:
    for chunk in found.chunks:
        yield {
            "index": chunk.index,
            "tokens": span(chunk.tokens),
            "characters": span(chunk.characters),
            "vector": encode_vector(chunk.vector, encoding),
        }
