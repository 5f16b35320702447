"""POST /v1/diagnostics: what every head does with a text."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Response

from engine.types import Diagnosis, HeadValues
from service.http.answers import DiagnosticsAnswer
from service.http.dependencies import Engine, Record, ServerMetrics, TimeoutS
from service.http.json import JsonRoute, json_response
from service.http.schemas import DiagnosticsBody
from service.http.vectors import accounting, server_timing

router = APIRouter(route_class=JsonRoute, tags=["diagnostics"])


@router.post(
    "/v1/diagnostics", response_model=DiagnosticsAnswer, summary="Diagnose a text's attention"
)
async def diagnostics(
    body: DiagnosticsBody,
    engine: Engine,
    timeout_s: TimeoutS,
    record: Record,
    metrics: ServerMetrics,
) -> Response:
    """Each instrument's value for each layer and head, with its method and its error."""
    found = await engine.diagnose(
        body.text,
        document=body.document,
        model=body.model,
        layers=body.layers,
        heads=body.heads,
        instruments=body.instruments,
        timeout_s=timeout_s,
    )
    record.model, record.tokens = found.model, found.tokens
    metrics.diagnosed(found)
    return json_response(diagnosis_document(found), headers=server_timing([found.accounting]))


def diagnosis_document(found: Diagnosis) -> dict[str, Any]:
    return {
        "object": "diagnosis",
        "model": found.model,
        "tokens": found.tokens,
        "layers": found.layers,
        "heads": found.heads,
        "attention": found.attention,
        "instruments": {reading.instrument: _reading(reading) for reading in found.instruments},
        "accounting": accounting(found.accounting),
    }


def _reading(reading: HeadValues) -> dict[str, Any]:
    return {
        "unit": reading.unit,
        "method": reading.method,
        "values": reading.values,  # [layers][heads]
        "error": reading.error,
        "compute_s": reading.compute_s,
    }
