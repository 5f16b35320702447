"""Reranking in the form that Cohere, vLLM and infinity share, with each one's fields."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any
from uuid import uuid4

from fastapi import Response
from pydantic import Field

from engine.errors import InvalidInput
from engine.types import Ranking, RankOptions, Truncate
from service.errors import report_names
from service.http.dialects.call import Call, DialectCall
from service.http.dialects.dropped import dropped_headers, dropped_usage
from service.http.dialects.refusals import agreed, refuse, refuse_given
from service.http.json_response import dump_list, json_response, server_timing
from service.http.schemas.fields import AtLeastOne, Body, Text, Whole
from service.http.schemas.ranking import DocumentValue, texts_of
from service.http.schemas.responses.base import Described


class RerankBody(Body):
    """The fields of all of them; `top_n` 0 answers all documents."""

    query: Text
    documents: list[DocumentValue]
    model: str | None = None
    top_n: Whole | None = None
    return_documents: bool | None = False
    rank_fields: list[str] | None = Field(None, description='Only ["text"].')
    max_chunks_per_doc: AtLeastOne | None = Field(
        None, description="Accepted; a document is read whole, and scored by its best passage."
    )
    max_tokens_per_doc: AtLeastOne | None = Field(
        None, description="Longer documents are cut to this many tokens."
    )
    max_tokens_per_query: Any = None
    truncate_prompt_tokens: Whole | None = Field(
        None, description="The same; -1 cuts at the model's limit."
    )
    truncation_side: str | None = None
    instruction: str | None = None
    relevant_spans: Any = None
    raw_scores: bool | None = Field(False, description="Scores of -1 to 1, instead of 0 to 1.")
    priority: Whole | None = Field(None, description="Accepted; not used.")
    user: str | None = None

    def options(self) -> RankOptions:
        if self.rank_fields not in (None, ["text"]):
            raise refuse("rank_fields", self.rank_fields, "documents are ranked by their text")
        refuse_given(
            self,
            {
                "instruction": "the models take no instructions",
                "max_tokens_per_query": "queries are read whole",
                "relevant_spans": "every document's best passage is in `passage` on /v1/rerank",
            },
        )
        for param, least in (("top_n", 0), ("max_chunks_per_doc", 1)):
            value = getattr(self, param)
            if value is not None and value < least:
                raise InvalidInput(
                    f"{param} must be at least {least}, got {value}",
                    param=param,
                    limit=least,
                    actual=value,
                )
        if self.truncation_side not in (None, "left", "right"):
            raise refuse("truncation_side", self.truncation_side, "it is left or right")
        limit = agreed(self, "truncate_prompt_tokens", "max_tokens_per_doc")
        policy: Truncate = "start" if self.truncation_side == "left" else "end"
        return RankOptions(
            truncate="error" if limit is None else policy, max_tokens=None if limit == -1 else limit
        )

    @property
    def names(self) -> Mapping[str, str]:
        by_prompt = self.truncate_prompt_tokens is not None
        return {
            "texts": "documents",
            "max_tokens": "truncate_prompt_tokens" if by_prompt else "max_tokens_per_doc",
        }


class Ranked(Described):
    index: int
    relevance_score: float
    document: dict[str, str] | str | None = None


class RerankAnswer(Described):
    id: str
    object: str
    created: int
    model: str
    results: list[Ranked]
    usage: dict[str, int]
    meta: dict[str, Any]


async def rank(
    call: DialectCall,
    query: str,
    texts: Sequence[str],
    model: str | None,
    options: RankOptions,
    names: Mapping[str, str],
) -> Ranking:
    call.resolve(model)
    with report_names(names):
        found = await call.engine.rank(
            query, texts, model=model, options=options, timeout_s=call.timeout_s
        )
    call.record.tokens = found.tokens
    return found


async def rerank(body: RerankBody, call: Call) -> Response:
    """The documents, those that answer the query best first."""
    return await _answer(body, call, as_objects=True)


async def rerank_with_strings(body: RerankBody, call: Call) -> Response:
    """The same with documents as strings, which infinity's clients read."""
    return await _answer(body, call, as_objects=False)


async def _answer(body: RerankBody, call: DialectCall, *, as_objects: bool) -> Response:
    texts = texts_of(body.documents)
    found = await rank(call, body.query, texts, body.model, body.options(), body.names)

    def result(place: int) -> dict[str, Any]:
        one = found.texts[place]
        item: dict[str, Any] = {
            "index": one.index,
            "relevance_score": one.score if body.raw_scores else one.relevance,
        }
        if body.return_documents:
            text = texts[one.index]
            item["document"] = {"text": text} if as_objects else text
        return item

    costs = found.accountings
    document = {
        "id": f"rerank-{uuid4().hex}",
        "object": "rerank",
        "created": int(time.time()),
        "model": body.model or call.record.model,
        "results": await dump_list(map(result, range(len(found.texts))[: body.top_n or None])),
        "usage": {
            "prompt_tokens": found.tokens,
            "total_tokens": found.tokens,
            **dropped_usage(costs),
        },
        "meta": {
            "api_version": {"version": "2"},
            "billed_units": {"search_units": 1},
            "tokens": {"input_tokens": found.tokens, "output_tokens": 0},
        },
    }
    return json_response(document, headers=server_timing(costs) | dropped_headers(costs[1:]))
