"""POST /v1/plan: what a text would take, before anyone sends it."""

from __future__ import annotations

from dataclasses import asdict

from fastapi import APIRouter, Response

from service.http.answers import PlanAnswer
from service.http.dependencies import Engine, Record, TimeoutS
from service.http.json import JsonRoute, json_response
from service.http.schemas import PlanBody

router = APIRouter(route_class=JsonRoute, tags=["models"])


@router.post("/v1/plan", response_model=PlanAnswer, summary="Price a text")
async def plan(body: PlanBody, engine: Engine, timeout_s: TimeoutS, record: Record) -> Response:
    """Whether it would be let in, which way it would run, and the memory and time it would take."""
    record.model = engine.resolve(body.model).name
    found = await engine.plan(body.tokens, text=body.text, model=body.model, timeout_s=timeout_s)
    record.tokens = found.tokens
    return json_response(asdict(found))
