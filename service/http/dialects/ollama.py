"""Ollama: enough of its API to index with its clients. Generation is refused."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from fastapi import APIRouter, Request, Response
from pydantic import Field

from engine.async_engine import AsyncEngine
from engine.errors import InvalidInput
from engine.types import EmbedOptions, ModelInfo
from service.errors import NotAvailable
from service.http.dependencies import Engine
from service.http.dialects.call import Call, DialectCall
from service.http.dialects.dialect import Dialect
from service.http.dialects.dropped import dropped_usage
from service.http.dialects.refusals import agreed
from service.http.dialects.shapes import as_sentence
from service.http.json_request import JsonRoute
from service.http.json_response import dump_list, json_response
from service.http.media_types import FORM
from service.http.schemas.fields import AtLeastOne, Body
from service.http.schemas.responses.base import Described
from service.version import version_of

_LATEST = ":latest"

_OPTIONS = frozenset(
    {
        *("numa", "num_ctx", "num_batch", "num_gpu", "main_gpu", "low_vram", "f16_kv"),
        *("logits_all", "vocab_only", "use_mmap", "use_mlock", "embedding_only", "num_thread"),
        *("num_keep", "seed", "num_predict", "top_k", "top_p", "min_p", "tfs_z", "typical_p"),
        *("repeat_last_n", "temperature", "repeat_penalty", "presence_penalty"),
        *("frequency_penalty", "mirostat", "mirostat_tau", "mirostat_eta", "penalize_newline"),
        *("stop", "draft_num_predict"),
    }
)
"""Options of generation and of the machine: none changes a vector here, where nothing is cut at
num_ctx."""


class OllamaRoute(JsonRoute):
    """Its documentation sends JSON with curl, which declares it a form."""

    undeclared_types = ("", FORM)


router = APIRouter(route_class=OllamaRoute, tags=["Ollama"])


class ModelBody(Body):
    model: str | None = None
    options: dict[str, Any] | None = Field(None, description="Accepted; changes no vector.")
    keep_alive: float | str | None = Field(None, description="Accepted; models stay loaded.")

    def resolve(self, call: DialectCall) -> ModelInfo:
        for name in self.options or ():
            if name not in _OPTIONS:
                raise InvalidInput(
                    f"options.{name} is not one of Ollama's options",
                    code="unknown_field",
                    param=f"options.{name}",
                )
        return call.resolve(own_name(call.engine, self.model))


class EmbedBody(ModelBody):
    """Ollama's request for embeddings."""

    input: str | list[str]
    truncate: bool | None = True
    dimensions: AtLeastOne | None = None


class OldEmbedBody(ModelBody):
    """Ollama's older request, for one text."""

    prompt: str


class ShowBody(Body):
    model: str | None = None
    name: str | None = None
    verbose: bool | None = None
    system: str | None = None
    template: str | None = None
    options: dict[str, Any] | None = None


class EmbedAnswer(Described):
    model: str
    embeddings: list[list[float]]
    total_duration: int
    load_duration: int
    prompt_eval_count: int


class OldEmbedAnswer(Described):
    embedding: list[float]


class Version(Described):
    version: str


class Tags(Described):
    models: list[dict[str, Any]]


class Shown(Described):
    details: dict[str, Any]
    model_info: dict[str, Any]
    capabilities: list[str]


def own_name(engine: AsyncEngine, name: str | None) -> str | None:
    """Ollama's names end with a tag; `latest` is what they mean without one."""
    if name is not None and name.endswith(_LATEST) and name not in set(_names(engine)):
        return name.removesuffix(_LATEST)
    return name


def _names(engine: AsyncEngine) -> Iterator[str]:
    for info in engine.models.values():
        yield info.name
        yield from info.aliases


@router.post("/api/embed", response_model=EmbedAnswer, summary="Embed texts")
async def embed(body: EmbedBody, call: Call) -> Response:
    """A vector for each text, in order."""
    started_at = time.perf_counter_ns()
    model = body.resolve(call).name
    lone = isinstance(body.input, str)
    options = EmbedOptions(
        dimensions=body.dimensions, truncate="error" if body.truncate is False else "end"
    )
    texts = [body.input] if isinstance(body.input, str) else body.input
    names = {"input": ["input"]} if lone else {}
    found = await call.embed(texts, model, options, names)
    vectors = await dump_list(embedding.vector for embedding in found.found)
    document = {
        "model": body.model or model,
        "embeddings": vectors,
        "total_duration": time.perf_counter_ns() - started_at,
        "load_duration": 0,
        "prompt_eval_count": found.tokens,
        **dropped_usage(found.costs),
    }
    return json_response(document, headers=found.headers)


@router.post("/api/embeddings", response_model=OldEmbedAnswer, summary="Embed one text")
async def embeddings(body: OldEmbedBody, call: Call) -> Response:
    """The vector of a text."""
    model = body.resolve(call).name
    options = EmbedOptions(truncate="end")
    found = await call.embed([body.prompt], model, options, {"input": ["prompt"]})
    return json_response({"embedding": found.found[0].vector}, headers=found.headers)


@router.get("/api/tags", response_model=Tags, summary="List the models")
@router.get("/api/ps", response_model=Tags, summary="List the models: all stay loaded")
async def tags(request: Request, engine: Engine) -> Response:
    """The models and their aliases."""
    since = datetime.fromtimestamp(request.app.state.started_at, UTC).isoformat()
    models = [
        {
            "name": name,
            "model": name,
            "modified_at": since,
            "digest": info.revision,
            "details": _details(info),
            "context_length": info.max_tokens,
        }
        for info in engine.models.values()
        for name in (info.name, *info.aliases)
    ]
    return json_response({"models": models})


@router.post("/api/show", response_model=Shown, summary="One model")
async def show(body: ShowBody, request: Request, engine: Engine) -> Response:
    name = agreed(body, "model", "name")
    if name is None:
        raise InvalidInput("model is required", code="missing_field", param="model")
    info = engine.resolve(own_name(engine, name))
    since = datetime.fromtimestamp(request.app.state.started_at, UTC).isoformat()
    architecture = info.family
    document = {
        "modelfile": "",
        "parameters": "",
        "template": "",
        "modified_at": since,
        "details": _details(info),
        "model_info": {
            "general.architecture": architecture,
            f"{architecture}.context_length": info.max_tokens,
            f"{architecture}.embedding_length": info.dim,
            f"{architecture}.block_count": info.num_layers,
            f"{architecture}.attention.head_count": info.num_heads,
        },
        "capabilities": ["embedding"],
    }
    return json_response(document)


def _details(info: ModelInfo) -> dict[str, Any]:
    return {
        "parent_model": "",
        "format": "safetensors",
        "family": info.family,
        "families": [info.family],
        "parameter_size": "",
        "quantization_level": info.dtype,
    }


@router.get("/api/version", response_model=Version, summary="The version of LLN")
async def version() -> Response:
    return json_response({"version": version_of("lln")})


@router.post("/api/generate", summary="Not available: nothing is generated here")
@router.post("/api/chat", summary="Not available: nothing is generated here")
async def generate() -> Response:
    raise NotAvailable(
        "this server embeds texts and generates none; ask it at /api/embed, and a server of a "
        "language model for text",
        code="not_a_generator",
    )


@router.post("/api/pull", summary="Not available: models are chosen at start")
@router.post("/api/push", summary="Not available: models are chosen at start")
@router.post("/api/create", summary="Not available: models are chosen at start")
@router.post("/api/copy", summary="Not available: models are chosen at start")
@router.delete("/api/delete", summary="Not available: models are chosen at start")
async def change_models() -> Response:
    raise NotAvailable(
        "this server's models are chosen when it starts, by LLN_MODELS and LLN_MODEL_ALIASES; "
        "/api/tags lists them",
        code="models_are_fixed",
    )


DIALECT = Dialect(name="ollama", router=router, error_shape=as_sentence)
