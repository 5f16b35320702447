"""GET /v1/models and GET /info: what is served, in OpenAI's shape and ours."""

from __future__ import annotations

import platform
from dataclasses import asdict
from typing import Any

from fastapi import APIRouter, Request, Response

from engine.types import ModelInfo
from service.http.answers import InfoAnswer, ModelAnswer, ModelList
from service.http.dependencies import Engine, ServerSettings
from service.http.json import json_response
from service.settings import Settings
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


@router.get("/info", response_model=InfoAnswer, summary="What runs here, and within which limits")
async def info(engine: Engine, settings: ServerSettings) -> Response:
    document = {
        "name": "lln",
        "version": version_of("lln"),
        "python": platform.python_version(),
        "libraries": {name: version_of(name) for name in _LIBRARIES},
        "models": [asdict(info) for info in engine.models.values()],
        "limits": {
            "max_body_bytes": settings.max_body_bytes,
            "max_open_requests": settings.max_open_requests,
            "request_timeout_s": settings.request_timeout_s,
            **asdict(settings.engine),
        },
        **_tei_info(engine.resolve(None), settings),
    }
    return json_response(document)


def _tei_info(model: ModelInfo, settings: Settings) -> dict[str, Any]:
    """The fields that clients of text-embeddings-inference look for."""
    limits = settings.engine
    return {
        "model_id": model.name,
        "model_sha": model.revision,
        "model_dtype": model.dtype,
        "served_model_name": model.name,
        "model_type": {"embedding": {"pooling": model.pooling}},
        "max_concurrent_requests": settings.max_open_requests,
        "max_input_length": model.max_tokens,
        "max_batch_tokens": limits.batch_tokens_on(model.device.partition(":")[0]),
        "max_batch_requests": limits.max_batch_sequences,
        "max_client_batch_size": limits.max_inputs,
        "auto_truncate": False,
        "tokenization_workers": limits.compute_threads,
        "sha": None,
        "docker_label": None,
    }
