"""POST /v1/search: passages of the folder that the server was started with."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Response

from service.http.dependencies import Record, Search, TimeoutS
from service.http.json_request import JsonRoute
from service.http.json_response import json_response, usage
from service.http.query import query_checked, query_known
from service.http.schemas.responses.search import IndexAnswer, IndexedDocument, SearchAnswer
from service.http.schemas.search import SearchBody

router = APIRouter(
    route_class=JsonRoute,
    tags=["search"],
    dependencies=[Depends(query_checked), Depends(query_known)],
)


@router.post("/v1/search", response_model=SearchAnswer, summary="Search the indexed folder")
async def search(body: SearchBody, found: Search, timeout_s: TimeoutS, record: Record) -> Response:
    """The best passages, by their words and by their vectors. Characters are counted in the text
    that `GET /v1/search/document` answers."""
    hits, tokens = await found.search(
        body.query, limit=body.limit, ways=body.by, timeout_s=timeout_s
    )
    record.tokens = tokens
    return json_response(
        {"object": "list", "data": [hit.document() for hit in hits], "usage": usage(tokens)}
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
