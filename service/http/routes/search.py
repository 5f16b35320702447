"""POST /v1/search: passages of the folder that the server was started with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Query, Response

from service.http.dependencies import Record, Search, TimeoutS
from service.http.json_request import JsonRoute
from service.http.json_response import json_response, span, usage
from service.http.schemas.responses.search import IndexAnswer, IndexedDocument, SearchAnswer
from service.http.schemas.search import SearchBody
from service.index.search import Hit

router = APIRouter(route_class=JsonRoute, tags=["search"])


@router.post("/v1/search", response_model=SearchAnswer, summary="Search the indexed folder")
async def search(body: SearchBody, found: Search, timeout_s: TimeoutS, record: Record) -> Response:
    """The best passages, by their words and by their vectors. Characters are counted in the text
    that `GET /v1/search/document` answers."""
    hits, tokens = await found.search(
        body.query, limit=body.limit, ways=body.by, timeout_s=timeout_s
    )
    record.tokens = tokens
    return json_response(
        {"object": "list", "data": [_hit(hit) for hit in hits], "usage": usage(tokens)}
    )


@router.get("/v1/search", response_model=IndexAnswer, summary="What is indexed")
async def index(found: Search, timeout_s: TimeoutS) -> Response:
    """`index` is null if the server searches no folder."""
    facts = await found.facts(timeout_s)
    described = facts and {
        "folder": facts.folder,
        "model": facts.model,
        "files": facts.totals.files - facts.totals.unreadable,
        "unreadable": facts.totals.unreadable,
        "passages": facts.totals.chunks,
        "tokens": facts.totals.tokens,
    }
    return json_response({"object": "index", "index": described})


@router.get(
    "/v1/search/document", response_model=IndexedDocument, summary="The text of an indexed file"
)
async def document(
    found: Search,
    timeout_s: TimeoutS,
    file: Annotated[str, Query(description="As in a passage that was found.")],
) -> Response:
    """The text as it was read when it was indexed."""
    document = await found.document(file, timeout_s)
    return json_response({"object": "document", **document._asdict()})


def _hit(hit: Hit) -> Mapping[str, Any]:
    passage = hit.passage
    return {
        "file": passage.path,
        "title": passage.title,
        "headings": passage.headings,
        "page": passage.page,
        "characters": span(passage.characters),
        "text": passage.text,
        "score": hit.score,
        "words_rank": hit.words_rank,
        "vectors_rank": hit.vectors_rank,
        "similarity": hit.similarity,
    }
