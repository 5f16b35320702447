"""infinity: OpenAI's routes without their prefix."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter, Response
from pydantic import Field

from service.http.dependencies import Engine, Record, TimeoutS
from service.http.dialects.dialect import Claim, Dialect
from service.http.dialects.ranking import rerank_with_strings
from service.http.dialects.refusals import TEXT_ONLY, agreed, refuse
from service.http.json_request import JsonRoute
from service.http.routes.embeddings import embeddings as own_embeddings
from service.http.routes.models import list_models
from service.http.schemas.embedding import EmbeddingsBody
from service.http.schemas.fields import AtLeastOne
from service.http.schemas.responses.embedding import EmbeddingsAnswer
from service.http.schemas.responses.models import ModelList

router = APIRouter(route_class=JsonRoute, tags=["infinity"])


class InfinityBody(EmbeddingsBody):
    """infinity's request for embeddings, and LiteLLM's name for its dimensions."""

    modality: str | None = Field(None, description='Only "text".')
    output_dimension: AtLeastOne | None = None


@router.post("/embeddings", response_model=EmbeddingsAnswer, summary="Embed texts")
async def embeddings(
    body: InfinityBody, engine: Engine, timeout_s: TimeoutS, record: Record
) -> Response:
    """As POST /v1/embeddings."""
    if body.modality not in (None, "text"):
        raise refuse("modality", body.modality, TEXT_ONLY)
    fields: dict[str, Any] = body.model_dump(
        exclude={"modality", "output_dimension"}, exclude_unset=True
    )
    fields["input"] = body.input
    fields["dimensions"] = agreed(body, "output_dimension", "dimensions")
    return await own_embeddings(EmbeddingsBody(**fields), engine, timeout_s, record)


router.add_api_route(
    "/models", list_models, methods=["GET"], response_model=ModelList, summary="List the models"
)


def _is_infinitys_ranking(document: Mapping[str, Any]) -> bool:
    """vLLM has the same path, and neither of the two fields."""
    return "documents" in document and not document.keys().isdisjoint(_RANK_FIELDS)


_RANK_FIELDS = frozenset({"return_documents", "raw_scores"})

DIALECT = Dialect(
    name="infinity",
    router=router,
    claims=(
        Claim(path="/v1/embeddings", endpoint=embeddings, fields=frozenset({"modality"})),
        Claim(
            path="/rerank",
            endpoint=rerank_with_strings,
            is_theirs=_is_infinitys_ranking,
        ),
    ),
)
