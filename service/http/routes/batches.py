"""/v1/batches: OpenAI's Batch API over the routes of vectors."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Response

from service.http.dependencies import BatchesOfServer
from service.http.json_request import JsonRoute
from service.http.json_response import json_response
from service.http.paging import page_response
from service.http.query import query_checked
from service.http.routes.files import check_kept_s
from service.http.schemas.batches import BatchBody
from service.http.schemas.fields import OnlyDigits
from service.http.schemas.responses.batches import BatchAnswer, BatchList

router = APIRouter(route_class=JsonRoute, tags=["batches"], dependencies=[Depends(query_checked)])


@router.post("/v1/batches", response_model=BatchAnswer, summary="Start a batch")
async def create_batch(body: BatchBody, batches: BatchesOfServer) -> Response:
    """Answers the requests of a file, one batch after the other, while nothing else is to be done.
    A batch outlives the server: the next one resumes it."""
    expiry = body.output_expires_after
    batch = await batches.create(
        body.input_file_id,
        body.endpoint,
        metadata=body.metadata,
        output_expires_s=None
        if expiry is None
        else check_kept_s(expiry.seconds, "output_expires_after.seconds"),
    )
    return json_response(batch.document())


@router.get("/v1/batches", response_model=BatchList, summary="List the batches")
async def list_batches(
    batches: BatchesOfServer,
    after: str | None = None,
    limit: Annotated[int, OnlyDigits, Query(ge=1, le=100)] = 20,
) -> Response:
    """The newest first."""
    return await page_response(await batches.list(after=after, limit=limit))


@router.get("/v1/batches/{batch_id}", response_model=BatchAnswer, summary="One batch")
async def get_batch(batch_id: str, batches: BatchesOfServer) -> Response:
    return json_response((await batches.get(batch_id)).document())


@router.post("/v1/batches/{batch_id}/cancel", response_model=BatchAnswer, summary="Cancel a batch")
async def cancel_batch(batch_id: str, batches: BatchesOfServer) -> Response:
    """What was answered by then is kept."""
    return json_response((await batches.cancel(batch_id)).document())
