"""POST /v1/structure: the parts of a document, as the encoder sees them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson
from fastapi import APIRouter, Response

from engine.types import Segment
from service.http.answers import StructureAnswer
from service.http.dependencies import Engine, Record, TimeoutS
from service.http.json import JsonRoute, dump_list, json_response
from service.http.schemas import StructureBody
from service.http.vectors import span
from service.turns import in_turns

router = APIRouter(route_class=JsonRoute, tags=["diagnostics"])


@router.post("/v1/structure", response_model=StructureAnswer, summary="Find a document's parts")
async def structure(
    body: StructureBody, engine: Engine, timeout_s: TimeoutS, record: Record
) -> Response:
    """Nested segments at several scales. Boundaries lie where the subject changes: where the cosine
    of the mean states before and after a place, as `layer` reads them, dips most."""
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
        "segments": await _segments(found.segments),
    }
    return json_response(document)


async def _segments(segments: Sequence[Segment]) -> orjson.Fragment:
    return await dump_list([await _segment(segment) async for segment in in_turns(segments)])


async def _segment(segment: Segment) -> dict[str, Any]:
    return {
        "level": segment.level,
        "tokens": span(segment.tokens),
        "characters": span(segment.characters),
        "children": await _segments(segment.children),
    }
