"""/v1/claims: what papers claim about attention, checked on this machine."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Response

from service.claims import ClaimsProgress
from service.errors import error_fields
from service.http.dependencies import Claims
from service.http.json_request import JsonRoute
from service.http.json_response import json_response
from service.http.query import query_known
from service.http.schemas.fields import NoFields
from service.http.schemas.responses.diagnostics import ClaimList

router = APIRouter(route_class=JsonRoute, tags=["diagnostics"], dependencies=[Depends(query_known)])

_RETRY_AFTER_S = 2

Only = Annotated[list[str] | None, Query(description="Ids, or what ids of one paper begin with.")]


_COMPUTING: dict[int | str, dict[str, Any]] = {
    202: {"model": ClaimList, "description": "Computing; these are checked so far."}
}


@router.get(
    "/v1/claims",
    response_model=ClaimList,
    responses=_COMPUTING,
    summary="The claims that have been checked",
)
async def list_claims(claims: Claims, only: Only = None) -> Response:
    """Reads the verdicts so far, and starts nothing. `state` is `not_started`, `computing`, `done`
    or `failed`, with the reason in `error`."""
    return _answer(claims.read(), only)


@router.post(
    "/v1/claims",
    response_model=ClaimList,
    responses=_COMPUTING,
    summary="Check the papers' claims here",
)
async def start_claims(claims: Claims, only: Only = None, body: NoFields | None = None) -> Response:
    """Starts the checks in the background, unless they run or are done; checks that failed start
    again. They take a minute or two at low priority. `only` chooses what is answered, not what is
    checked."""
    from engine.claims.check import find_claims

    find_claims(only)  # a misspelt name starts nothing
    claims.start()
    return _answer(claims.read(), only)


def _answer(found: ClaimsProgress, only: list[str] | None) -> Response:
    """The status is 202 while there is more to come, for GET too: clients wait by it."""
    from engine.claims.check import find_claims

    wanted = {claim.id for claim in find_claims(only)}
    answer = {
        "object": "list",
        "state": found.state,
        "checked": len(found.rows),
        "total": found.total,
        "data": [asdict(row) for row in found.rows if row.id in wanted],
        "error": None if found.failure is None else error_fields(found.failure),
    }
    if found.state == "computing":
        return json_response(answer, 202, {"retry-after": str(_RETRY_AFTER_S)})
    return json_response(answer)
