"""POST /v1/rerank: documents ranked for a query, in the form that Jina, Cohere and others share."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Response

from engine.types import RankedText
from service.errors import report_input_as
from service.http.dependencies import Engine, Record, TimeoutS
from service.http.json_request import JsonRoute
from service.http.json_response import dump_list, json_response, server_timing, span
from service.http.schemas.ranking import RankBody
from service.http.schemas.responses.ranking import RankAnswer

router = APIRouter(route_class=JsonRoute, tags=["ranking"])


@router.post("/v1/rerank", response_model=RankAnswer, summary="Rank documents for a query")
async def rerank(body: RankBody, engine: Engine, timeout_s: TimeoutS, record: Record) -> Response:
    """The documents, those that answer the query best first.

    A document of more than 256 tokens is scored by its best passage, whose characters are in
    `passage`; of a short document these are all. `score` is from -1 to 1, `relevance_score` is the
    same from 0 to 1.
    """
    model = record.model = engine.resolve(body.model).name
    body.check()
    texts = body.texts
    with report_input_as("documents", lone=False):
        found = await engine.rank(
            body.query, texts, model=body.model, options=body.options(), timeout_s=timeout_s
        )
    record.tokens = found.tokens
    document = {
        "object": "list",
        "model": body.model or model,
        "scoring": found.scoring,
        "results": await dump_list(
            _result(one, texts[one.index] if body.return_documents else None)
            for one in found.texts[: body.top_n]
        ),
        "usage": {"total_tokens": found.tokens},
    }
    return json_response(document, headers=server_timing(found.accountings))


def _result(found: RankedText, text: str | None) -> dict[str, Any]:
    return {
        "index": found.index,
        "relevance_score": found.relevance,
        "score": found.score,
        "passage": span(found.passage),
        **({} if text is None else {"document": {"text": text}}),
    }
