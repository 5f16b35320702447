"""POST /v1/diagnostics: what every head does with a text."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from fastapi import APIRouter, Response

from engine.diagnostics.listing import instrument_infos
from engine.types import Beside, Diagnosis, HeadValues
from service.http.answers import DiagnosticsAnswer, InstrumentList
from service.http.dependencies import Engine, Record, TimeoutS
from service.http.json import JsonRoute, json_response
from service.http.schemas import DiagnosticsBody
from service.http.vectors import accounting, server_timing

router = APIRouter(route_class=JsonRoute, tags=["diagnostics"])


@router.get(
    "/v1/diagnostics/instruments", response_model=InstrumentList, summary="What can be measured"
)
async def instruments() -> Response:
    """Every instrument, in the order in which a diagnosis answers."""
    data = [asdict(one) for one in instrument_infos()]
    return json_response({"object": "list", "data": data})


@router.post(
    "/v1/diagnostics", response_model=DiagnosticsAnswer, summary="Diagnose a text's attention"
)
async def diagnostics(
    body: DiagnosticsBody, engine: Engine, timeout_s: TimeoutS, record: Record
) -> Response:
    """Each instrument's value for each layer and head, with its method, error and cost."""
    model = record.model = engine.resolve(body.model).name
    found = await engine.diagnose(
        body.text,
        model=model,
        layers=body.layers,
        heads=body.heads,
        instruments=body.instruments,
        mode=body.mode,
        timeout_s=timeout_s,
    )
    record.tokens = found.tokens
    return json_response(diagnosis_document(found), headers=server_timing([found.accounting]))


def diagnosis_document(found: Diagnosis) -> dict[str, Any]:
    return {
        "object": "diagnosis",
        "model": found.model,
        "tokens": found.tokens,
        "mode": found.mode,
        "layers": found.layers,
        "heads": found.heads,
        "attention": found.attention,
        "instruments": {reading.instrument: _reading(reading) for reading in found.instruments},
        "left_out": {one.instrument: one.reason for one in found.left_out},
        "accounting": accounting(found.accounting),
    }


def _reading(reading: HeadValues) -> dict[str, Any]:
    return {
        "unit": reading.unit,
        "scope": reading.scope,
        "method": reading.method,
        "values": reading.values,  # [layers][heads], [layers][1] of whole layers
        "error": reading.error,
        "beside": {part.name: _beside(part) for part in reading.beside},
        "cost": reading.cost,
        "compute_s": reading.compute_s,
    }


def _beside(part: Beside) -> dict[str, Any]:
    return {"unit": part.unit, "values": part.values, "error": part.error}
