"""GET /v1/claims: what papers claim about attention, checked on this machine."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

from fastapi import APIRouter, Query, Response

from engine.claims.check import find_claims
from service.http.dependencies import Claims
from service.http.json_request import JsonRoute
from service.http.json_response import json_response
from service.http.schemas.responses import ClaimList

router = APIRouter(route_class=JsonRoute, tags=["diagnostics"])

_RETRY_AFTER_S = 2


@router.get(
    "/v1/claims",
    response_model=ClaimList,
    responses={202: {"model": ClaimList, "description": "Computing; these are checked so far."}},
    summary="The papers' claims, checked here",
)
async def list_claims(
    claims: Claims,
    only: Annotated[
        list[str] | None, Query(description="Ids, or what ids of one paper begin with.")
    ] = None,
) -> Response:
    """The first call starts the checks in the background. Until they are done, the answer is 202
    with the claims checked so far."""
    wanted = {claim.id for claim in find_claims(only)}
    found = claims.read()
    answer = {
        "object": "list",
        "state": found.state,
        "checked": len(found.rows),
        "total": found.total,
        "data": [asdict(row) for row in found.rows if row.id in wanted],
    }
    if found.state == "done":
        return json_response(answer)
    return json_response(answer, 202, {"retry-after": str(_RETRY_AFTER_S)})
