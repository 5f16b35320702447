"""GET /v1/models and GET /info: what is served, in OpenAI's shape and ours."""

from __future__ import annotations

import platform
from dataclasses import asdict
from typing import Any

from fastapi import APIRouter, Request, Response

from engine.types import ModelInfo
from service.http.answers import ModelAnswer, ModelList
from service.http.dependencies import Engine, ServerSettings
from service.http.json import json_response
from service.version import version_of

router = APIRouter(tags=["models"])

_LIBRARIES = ("torch", "tokenizers", "fastapi", "uvicorn", "grpcio")


def model_document(info: ModelInfo, created: int) -> dict[str, Any]:
    owner, slash, _ = info.name.partition("/")
    openai = {
        "id": info.name,
        "object": "model",
        "created": created,
        "owned_by": owner if slash else "lln",
    }
    return openai | asdict(info)


@router.get("/v1/models", response_model=ModelList, summary="List the models")
async def list_models(request: Request, engine: Engine) -> Response:
    created = request.app.state.started_at
    data = [model_document(info, created) for info in engine.models.values()]
    return json_response({"object": "list", "data": data})


@router.get("/v1/models/{model:path}", response_model=ModelAnswer, summary="One model")
async def get_model(model: str, request: Request, engine: Engine) -> Response:
    return json_response(model_document(engine.resolve(model), request.app.state.started_at))


@router.get("/info", summary="What runs here, and within which limits")
async def info(engine: Engine, settings: ServerSettings) -> Response:
    document = {
        "name": "lln",
        "version": version_of("lln"),
        "python": platform.python_version(),
        "libraries": {name: version_of(name) for name in _LIBRARIES},
        "models": [asdict(info) for info in engine.models.values()],
        "limits": {
            "max_body_bytes": settings.max_body_bytes,
            "request_timeout_s": settings.request_timeout_s,
            **asdict(settings.engine),
        },
    }
    return json_response(document)
