"""POST /v1/structure: the parts of a document, as the encoder sees them."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Response

from engine.types import Segment
from service.http.answers import StructureAnswer
from service.http.dependencies import Engine, Record, TimeoutS
from service.http.json import JsonRoute, json_response
from service.http.schemas import StructureBody
from service.http.vectors import span

router = APIRouter(route_class=JsonRoute, tags=["diagnostics"])


@router.post("/v1/structure", response_model=StructureAnswer, summary="Find a document's parts")
async def structure(
    body: StructureBody, engine: Engine, timeout_s: TimeoutS, record: Record
) -> Response:
    """Nested segments at several scales, with boundaries where attention across them is low."""
    found = await engine.structure(
        body.text,
        document=body.document,
        model=body.model,
        scales=body.scales,
        timeout_s=timeout_s,
    )
    record.model, record.tokens = found.model, found.tokens
    document = {
        "object": "structure",
        "model": found.model,
        "document": found.document,
        "tokens": found.tokens,
        "layer": found.layer,
        "scales": found.scales,
        "segments": [_segment(segment) for segment in found.segments],
    }
    return json_response(document)


def _segment(segment: Segment) -> dict[str, Any]:
    return {
        "level": segment.level,
        "tokens": span(segment.tokens),
        "characters": span(segment.characters),
        "children": [_segment(child) for child in segment.children],
    }
