"""/v1/files: OpenAI's files, which are the input and the answers of batches."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Query, Request, Response

from engine.errors import InvalidInput, shown
from service.batches.records import INPUT, StoredFile
from service.batches.store import no_file
from service.batches.uploads import Upload
from service.fairness import read_by_then, receive_within
from service.http.dependencies import BatchesOfServer, ServerSettings, TimeoutS
from service.http.file_response import ContentResponse
from service.http.json_response import json_response
from service.http.media_types import MULTIPART
from service.http.paging import page_response
from service.http.query import query_checked
from service.http.schemas.fields import OnlyDigits
from service.http.schemas.responses.batches import DeletedFile, FileAnswer, FileList
from service.http.upload import FormReader, too_large
from service.settings import Settings

router = APIRouter(tags=["batches"], dependencies=[Depends(query_checked)])

_MOST_LISTED = 10_000
_FORM_BYTES = 64 * 1024  # around the file
_KEPT_S = (3600, 30 * 24 * 3600)
_EXPIRY = ("expires_after[anchor]", "expires_after[seconds]")
_FIELDS = ("purpose", *_EXPIRY)


@router.post(
    "/v1/files",
    response_model=FileAnswer,
    summary="Upload a file",
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {
                MULTIPART: {
                    "schema": {
                        "type": "object",
                        "required": ["file", "purpose"],
                        "properties": {
                            "file": {"type": "string", "format": "binary"},
                            "purpose": {"type": "string", "enum": [INPUT]},
                            "expires_after[anchor]": {"type": "string", "enum": ["created_at"]},
                            "expires_after[seconds]": {"type": "integer"},
                        },
                    }
                }
            },
        }
    },
)
async def upload(
    request: Request, batches: BatchesOfServer, settings: ServerSettings, timeout_s: TimeoutS
) -> Response:
    """The input of a batch: a JSON object on each line, with `custom_id`, `method` POST, `url` and
    `body`. The file goes to the disk while it arrives."""
    limit = batches.limits.file_bytes
    _check_size(_announced(request), limit)  # before the caller has to send it
    async with batches.uploads.begin(_announced(request)) as arriving:
        file = await _receive(request, arriving, limit, settings, timeout_s)
        await arriving.keep(file)
    return json_response(file.document())


@router.get("/v1/files", response_model=FileList, summary="List the files")
async def list_files(
    batches: BatchesOfServer,
    after: str | None = None,
    limit: Annotated[int, OnlyDigits, Query(ge=1, le=_MOST_LISTED)] = _MOST_LISTED,
    order: Literal["asc", "desc"] = "desc",
    purpose: str | None = None,
) -> Response:
    page = await asyncio.to_thread(
        batches.store.list_files, purpose, after=after, limit=limit, newest_first=order == "desc"
    )
    return await page_response(page)


@router.get("/v1/files/{file_id}", response_model=FileAnswer, summary="One file")
async def get_file(file_id: str, batches: BatchesOfServer) -> Response:
    file = await asyncio.to_thread(batches.store.get_file, file_id)
    return json_response(file.document())


@router.get("/v1/files/{file_id}/content", response_class=ContentResponse, summary="Its contents")
async def file_content(file_id: str, batches: BatchesOfServer) -> Response:
    path, status = await asyncio.to_thread(batches.store.get_contents, file_id)
    return ContentResponse(
        path,
        gone=no_file(file_id),
        media_type="application/octet-stream",
        stat_result=status,
    )


@router.delete("/v1/files/{file_id}", response_model=DeletedFile, summary="Delete a file")
async def delete_file(file_id: str, batches: BatchesOfServer) -> Response:
    """The input of a batch that has not finished cannot be deleted."""
    await batches.delete_file(file_id)
    return json_response({"id": file_id, "object": "file", "deleted": True})


async def _receive(
    request: Request, arriving: Upload, max_bytes: int, settings: Settings, timeout_s: float
) -> StoredFile:
    form = FormReader(request.headers.get("content-type", ""), arriving.write, max_bytes)
    async with read_by_then(timeout_s, "the file was"):
        pieces = _pieces(request, arriving, max_bytes)
        await form.read(receive_within(pieces, settings.body_timeout_s))
    return _stored_file(arriving.id, form)


def _announced(request: Request) -> int:
    length = request.headers.get("content-length", "")
    return int(length) if length.isdecimal() else 0


def _check_size(num_bytes: int, limit: int) -> None:
    """Refuses a form that is larger than its file may be, whatever else it has."""
    if num_bytes > limit + _FORM_BYTES:
        raise too_large(num_bytes, limit)


async def _pieces(request: Request, arriving: Upload, limit: int) -> AsyncIterator[bytes]:
    num_bytes = 0
    async for piece in request.stream():
        num_bytes += len(piece)
        _check_size(num_bytes, limit)
        arriving.reach(num_bytes)
        yield piece


def _stored_file(file_id: str, form: FormReader) -> StoredFile:
    for name in form.fields:
        if name not in _FIELDS:
            raise InvalidInput(
                f"{shown(name)} is not a known field", code="unknown_field", param=name
            )
    purpose = form.fields.get("purpose")
    if purpose != INPUT:
        raise InvalidInput(
            f"purpose must be {INPUT}, got {shown(purpose or 'none')}",
            code="invalid_purpose",
            param="purpose",
            limit=INPUT,
            actual=purpose,
        )
    now = int(time.time())
    kept_s = _kept_s([form.fields.get(name) for name in _EXPIRY])
    return StoredFile(
        id=file_id,
        filename=form.filename or "file",
        purpose=purpose,
        num_bytes=form.num_bytes,
        created_at=now,
        expires_at=None if kept_s is None else now + kept_s,
    )


def _kept_s(expiry: Sequence[str | None]) -> int | None:
    anchor, seconds = expiry
    if anchor is None and seconds is None:
        return None
    if anchor != "created_at":
        raise InvalidInput(
            "expires_after[anchor] must be created_at", param=_EXPIRY[0], actual=anchor
        )
    if seconds is None or not seconds.isdecimal():
        raise InvalidInput(
            "expires_after[seconds] must be a whole number", param=_EXPIRY[1], actual=seconds
        )
    return check_kept_s(int(seconds), _EXPIRY[1])


def check_kept_s(seconds: int, param: str) -> int:
    least, most = _KEPT_S
    if not least <= seconds <= most:
        raise InvalidInput(
            f"{param} must be {least} to {most}, got {shown(seconds)}",
            param=param,
            limit=least if seconds < least else most,
            actual=seconds,
        )
    return seconds
