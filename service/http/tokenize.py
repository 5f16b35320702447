"""POST /v1/tokenize: a text as its model reads it."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Response

from engine.deadline import Deadline
from service.http.answers import TokenizeAnswer
from service.http.dependencies import Engine, Record, TimeoutS
from service.http.json import JsonRoute, dump_list, json_response
from service.http.schemas import TokenizeBody

router = APIRouter(route_class=JsonRoute, tags=["models"])


@router.post("/v1/tokenize", response_model=TokenizeAnswer, summary="Tokenize a text")
async def tokenize(
    body: TokenizeBody, engine: Engine, timeout_s: TimeoutS, record: Record
) -> Response:
    """Token ids, their pieces and their character offsets in the text; (0, 0) if special."""
    model = record.model = engine.resolve(body.model).name
    async with Deadline(timeout_s).over():
        found = await engine.tokenize(body.text, model=model)
        opened = await _opened(body, engine, model)
    record.tokens = len(found.ids)
    document: dict[str, Any] = {
        "model": body.model or model,
        "count": len(found.ids),
        "ids": await dump_list(found.ids),
        "offsets": await dump_list([offset.start, offset.end] for offset in found.offsets),
        "tokens": await dump_list(found.tokens),
        "document": opened,
    }
    return json_response(document)


async def _opened(body: TokenizeBody, engine: Engine, model: str) -> str | None:
    if not body.open:
        return None
    return (await engine.keep_open(body.text, model=model)).handle
