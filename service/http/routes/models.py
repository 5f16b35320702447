"""What a model is and what it makes of a text.

POST /v1/plan prices a text before you send it, POST /v1/tokenize returns its tokens, and
GET /v1/models and GET /info describe what is served.
"""

from __future__ import annotations

import platform
from dataclasses import asdict
from functools import partial
from typing import Any, cast

from fastapi import APIRouter, Depends, HTTPException, Request, Response

from engine.errors import InvalidInput
from engine.platform.turns import beside_others
from engine.scheduling.deadline import Deadline
from engine.types import Context, ModelInfo
from service.edits import apply_edits
from service.http.dependencies import Engine, Record, ServerSettings, TimeoutS
from service.http.json_request import JsonRoute
from service.http.json_response import dump_array, dump_list, json_response
from service.http.query import query_known
from service.http.records import decoded
from service.http.schemas.embedding import PlanBody, TokenizeBody
from service.http.schemas.responses.models import InfoAnswer, ModelAnswer, ModelList
from service.http.schemas.responses.tokens import PlanAnswer, TokenizeAnswer
from service.plans import planned
from service.settings import Settings
from service.version import version_of

router = APIRouter(route_class=JsonRoute, tags=["models"])

_LIBRARIES = ("torch", "tokenizers", "fastapi", "uvicorn", "grpcio")


@router.post(
    "/v1/plan",
    response_model=PlanAnswer,
    dependencies=[Depends(query_known)],
    summary="Price a text",
)
async def plan(body: PlanBody, engine: Engine, timeout_s: TimeoutS, record: Record) -> Response:
    """Whether a text would be accepted, how it would run, and the memory and time it would take.

    With `record`, what reading the text on from it would take (PATCH /v1/documents).
    """
    record.model = engine.resolve(body.model).name
    text = body.text
    if body.edits is not None:
        if body.record is None or text is None:
            raise InvalidInput(
                "edits change the text of a document with a record; give both", param="edits"
            )
        text = await beside_others(partial(apply_edits, text, body.edits))
    found = await planned(
        engine,
        tokens=body.tokens,
        text=text,
        context=cast("Context | None", body.context),  # the engine checks it
        vector=body.vector,
        record=None if body.record is None else decoded(body.record),
        model=body.model,
        timeout_s=timeout_s,
    )
    record.tokens = found.tokens
    return json_response(asdict(found))


@router.post(
    "/v1/tokenize",
    response_model=TokenizeAnswer,
    dependencies=[Depends(query_known)],
    summary="Tokenize a text",
)
async def tokenize(
    body: TokenizeBody, engine: Engine, timeout_s: TimeoutS, record: Record
) -> Response:
    """Token ids, tokens and their character offsets in the text; special tokens have [0, 0]."""
    model = record.model = engine.resolve(body.model).name
    async with Deadline(timeout_s).over():
        found = await engine.tokenize(body.text, model=model)
        opened = await engine.keep_open(body.text, model=model) if body.open else None
    record.tokens = len(found.ids)
    document = {
        "model": body.model or model,
        "count": len(found.ids),
        "ids": await dump_array(found.ids),
        "offsets": await dump_array(found.offsets),
        "tokens": await dump_list(found.tokens),
        "document": opened and opened.handle,
    }
    return json_response(document)


def model_document(info: ModelInfo, name: str, created: int) -> dict[str, Any]:
    """A model by its own name or by an alias. OpenAI's clients look for the name in `id`."""
    owner, slash, _ = info.name.partition("/")
    openai = {
        "id": name,
        "object": "model",
        "created": created,
        "owned_by": owner if slash else "lln",
    }
    return openai | asdict(info)


@router.get("/v1/models", response_model=ModelList, summary="List the models")
async def list_models(request: Request, engine: Engine) -> Response:
    """The models, then their aliases, whose `name` is that of the model."""
    created = request.app.state.started_at
    models = engine.models
    names = (*models, *(alias for info in models.values() for alias in info.aliases))
    data = [model_document(engine.resolve(name), name, created) for name in names]
    return json_response({"object": "list", "data": data})


@router.get("/v1/models/{model:path}", response_model=ModelAnswer, summary="One model")
async def get_model(model: str, request: Request, engine: Engine) -> Response:
    if not model:  # the list with a slash at its end
        raise HTTPException(404)
    created = request.app.state.started_at
    return json_response(model_document(engine.resolve(model), model, created))


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
        "ranks": asdict(engine.ranks),
        **_tei_info(engine.resolve(None), settings),
    }
    return json_response(document)


def _tei_info(model: ModelInfo, settings: Settings) -> dict[str, Any]:
    """The fields that clients of text-embeddings-inference read from the same route."""
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
