"""GET /health, /health/live, /health/ready and /metrics: for probes and monitoring."""

from __future__ import annotations

from dataclasses import asdict

from fastapi import APIRouter, Request, Response
from starlette.responses import PlainTextResponse

from engine.errors import EngineUnavailable
from service.http.dependencies import Engine, ServerMetrics
from service.http.json_response import json_response
from service.http.schemas.responses.models import Health

router = APIRouter(tags=["health"])


@router.get("/health/live", response_model=Health, summary="Does the process answer?")
async def live() -> Response:
    return json_response({"status": "alive"})


@router.get("/health", response_model=Health, summary="Do the models answer?")
@router.get("/health/ready", response_model=Health, summary="Do the models answer?")
async def ready(request: Request, engine: Engine) -> Response:
    """200 once each model has answered a first text; 503 with the reason otherwise. A server that
    lost ranks stays ready: `ranks` says how many can read a long document together."""
    if request.app.state.draining.announced:
        raise EngineUnavailable("the server is stopping", code="draining")
    if engine.stuck:
        limit = engine.config.stuck_after_s
        message = f"the device has not finished one batch in more than {limit:g} s"
        raise EngineUnavailable(message, code="stuck", limit=limit)
    if not engine.ready:
        raise EngineUnavailable("the engine does not take work", code="not_ready")
    ranks = asdict(engine.ranks)
    return json_response({"status": "ready", "models": list(engine.models), "ranks": ranks})


_REFUSAL = {
    "content": {"application/json": {"schema": {"$ref": "#/components/schemas/ErrorAnswer"}}}
}


@router.get(
    "/metrics",
    response_class=PlainTextResponse,
    summary="Metrics for Prometheus",
    # Errors are JSON here too. FastAPI would document them as plain text.
    openapi_extra={"responses": {"4XX": _REFUSAL, "5XX": _REFUSAL}},
)
async def metrics(request: Request, metrics: ServerMetrics) -> Response:
    page = metrics.expose(request.headers.get("accept", ""))
    return Response(page.body, media_type=page.content_type)
