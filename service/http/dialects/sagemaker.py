"""SageMaker: GET /ping, and POST /invocations with the body of any of the other requests."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

from fastapi import APIRouter, Request, Response

from engine.errors import InvalidInput
from service.http.dependencies import Engine
from service.http.dialects import cohere, vllm, voyage_contextual
from service.http.dialects.dialect import Dialect
from service.http.json_handler import JsonHandler
from service.http.json_request import JsonRoute
from service.http.routes import embeddings, health, ranking, tei
from service.http.schemas.responses.models import Health


class _Kind(NamedTuple):
    """A request that is recognised by one of these fields."""

    fields: frozenset[str]
    path: str
    endpoint: Callable[..., Any]

    all_of: frozenset[str] = frozenset()
    """Fields that it has besides."""

    def covers(self, document: dict[str, Any]) -> bool:
        return not document.keys().isdisjoint(self.fields) and self.all_of <= document.keys()


_CONTEXTUAL = _Kind(
    frozenset({"enable_auto_chunking"}),
    "/v1/contextualizedembeddings",
    voyage_contextual.contextualized_embeddings,
)
_KINDS = (
    _CONTEXTUAL,
    _Kind(frozenset({"documents"}), "/v1/rerank", ranking.rerank, frozenset({"query"})),
    _Kind(frozenset({"texts"}), "/rerank", tei.rerank, frozenset({"query"})),
    _Kind(frozenset({"inputs"}), "/embed", tei.embed),
    _Kind(frozenset({"texts"}), "/v2/embed", cohere.embed_v2),
    _Kind(frozenset({"text_1", "data_1", "queries"}), "/score", vllm.score),
    _Kind(frozenset({"prompt"}), "/tokenize", vllm.tokenize),
    _Kind(frozenset({"task"}), "/pooling", vllm.pooling),
    _Kind(frozenset({"input"}), "/v1/embeddings", embeddings.embeddings),
)
"""The first that covers a body is meant."""


def _kind_of(document: Any) -> _Kind | None:
    if not isinstance(document, dict):
        return None
    if _are_lists_of_texts(document.get("inputs")):
        return _CONTEXTUAL
    return next((kind for kind in _KINDS if kind.covers(document)), None)


def _are_lists_of_texts(inputs: Any) -> bool:
    """Chunks of documents; lists of numbers are token ids of texts."""
    first = inputs[0] if isinstance(inputs, list) and inputs else None
    return isinstance(first, list) and bool(first) and isinstance(first[0], str)


@cache
def _handler(kind: _Kind) -> JsonHandler:
    route = JsonRoute(kind.path, kind.endpoint, methods=["POST"], response_model=None)
    return route.json_handler()


class InvocationsRoute(JsonRoute):
    """The platform calls one path, whatever it asks for."""

    def choose(self, request: Request, document: Any) -> JsonHandler | None:
        kind = _kind_of(document)
        if kind is None:
            return None
        claimed: JsonHandler | None = request.app.state.dialects.handler_for(kind.path, document)
        return claimed or _handler(kind)


router = APIRouter(route_class=InvocationsRoute, tags=["SageMaker"])


@router.get("/ping", response_model=Health, summary="Do the models answer?")
async def ping(request: Request, engine: Engine) -> Response:
    """As GET /health/ready."""
    return await health.ready(request, engine)


@router.post("/invocations", summary="Whatever the body asks for")
async def invocations(body: dict[str, Any]) -> Response:
    """The body of one of the other requests, told by its fields."""
    known = ", ".join(sorted({field for kind in _KINDS for field in kind.fields}))
    raise InvalidInput(
        f"the body has none of the fields that say what is asked for: {known}",
        code="missing_field",
        limit=known,
    )


DIALECT = Dialect(name="sagemaker", router=router, open_paths=("/ping",))
