"""Cohere: POST /v2/embed and /v1/embed."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias
from uuid import uuid4

from fastapi import APIRouter, Response
from pydantic import Field

from engine.errors import InvalidInput
from engine.types import EmbedOptions, Truncate
from service.http.dialects.call import Call, DialectCall
from service.http.dialects.dialect import Claim, Dialect
from service.http.dialects.dropped import dropped_usage
from service.http.dialects.outputs import Dtype, vector_form
from service.http.dialects.prompts import prompt_for
from service.http.dialects.ranking import RerankAnswer, rerank
from service.http.dialects.refusals import TEXT_ONLY, refuse, refuse_given
from service.http.dialects.shapes import with_message
from service.http.json_request import JsonRoute
from service.http.json_response import dump_list, json_response
from service.http.schemas.fields import AtLeastOne, Body, Whole, counted_first
from service.http.schemas.responses.base import Described

router = APIRouter(route_class=JsonRoute, tags=["Cohere"])

InputType: TypeAlias = Literal[
    "search_document", "search_query", "classification", "clustering", "image"
]
EmbeddingType: TypeAlias = Literal["float", "int8", "uint8", "binary", "ubinary", "base64"]
_POLICIES: dict[str, Truncate] = {"NONE": "error", "START": "start", "END": "end"}

_MAX_MIXED_INPUTS = 16_384
"""However many texts the server takes: each of these takes far longer to read."""


class Content(Body):
    type: Literal["text", "image_url"]
    text: str | None = None
    image_url: Any = None


class MixedInput(Body):
    """One input of several parts, of which the texts are read together."""

    content: list[Content]


class EmbedBody(Body):
    """Cohere's request for embeddings."""

    model: str | None = None
    texts: list[str] | None = None
    images: list[str] | None = None
    input_type: InputType | None = Field(
        None, description="Picks the model's prompt for queries or documents, where it has one."
    )
    embedding_types: list[EmbeddingType] | None = None
    truncate: Literal["NONE", "START", "END"] | None = "END"

    @property
    def max_tokens_or_none(self) -> int | None:
        return None

    @property
    def dimensions(self) -> int | None:
        return None

    def inputs_of_texts(self) -> list[str]:
        refuse_given(self, {"images": TEXT_ONLY})
        if self.input_type == "image":
            raise refuse("input_type", "image", TEXT_ONLY)
        if self.texts is None:
            raise InvalidInput("texts is required", code="missing_field", param="texts")
        return self.texts

    def options(self, call: DialectCall) -> EmbedOptions:
        return EmbedOptions(
            prompt_name=prompt_for(self.input_type, call.resolve(self.model)),
            dimensions=self.dimensions,
            truncate=_POLICIES[self.truncate or "END"],
            max_tokens=self.max_tokens_or_none,
        )


def _check_num_inputs(count: int) -> None:
    if count > _MAX_MIXED_INPUTS:
        raise InvalidInput(
            f"inputs holds {count} texts, the limit is {_MAX_MIXED_INPUTS}",
            code="too_many_inputs",
            param="inputs",
            limit=_MAX_MIXED_INPUTS,
            actual=count,
        )


class EmbedBodyV2(EmbedBody):
    """The same of the second version, which takes mixed inputs and fewer dimensions."""

    inputs: Annotated[list[MixedInput] | None, counted_first(_check_num_inputs)] = None
    max_tokens: AtLeastOne | None = Field(
        None, description="Longer texts are cut, as truncate says."
    )
    output_dimension: AtLeastOne | None = None
    priority: Whole | None = Field(None, description="Accepted; not used.")

    @property
    def max_tokens_or_none(self) -> int | None:
        return self.max_tokens

    @property
    def dimensions(self) -> int | None:
        return self.output_dimension

    def inputs_of_texts(self) -> list[str]:
        if self.inputs is None:
            return super().inputs_of_texts()
        if self.texts is not None:
            raise InvalidInput("send texts or inputs, and not both", param="inputs")
        return [_text_of(item, f"inputs[{place}]") for place, item in enumerate(self.inputs)]


def _text_of(item: MixedInput, param: str) -> str:
    texts = (_text_part(part, f"{param}.content[{at}]") for at, part in enumerate(item.content))
    return "\n".join(texts)


def _text_part(part: Content, param: str) -> str:
    if part.type != "text":
        raise refuse(param, part.type, TEXT_ONLY)
    if part.image_url is not None:
        raise refuse(f"{param}.image_url", part.image_url, TEXT_ONLY)
    if part.text is None:
        raise InvalidInput(f"{param}.text is required", code="missing_field", param=f"{param}.text")
    return part.text


class EmbedAnswer(Described):
    id: str
    response_type: str
    embeddings: dict[str, list[Any]] | list[list[float]]
    texts: list[str]
    meta: dict[str, Any]


@router.post("/v2/embed", response_model=EmbedAnswer, summary="Embed texts")
async def embed_v2(body: EmbedBodyV2, call: Call) -> Response:
    """A list of vectors for each of `embedding_types`."""
    types = body.embedding_types
    if types is None:
        types = ["float"]
    return await _answer(body, call, version="2", types=types)


@router.post("/v1/embed", response_model=EmbedAnswer, summary="Embed texts")
async def embed_v1(body: EmbedBody, call: Call) -> Response:
    """A list of vectors, or one for each of `embedding_types`."""
    return await _answer(body, call, version="1", types=body.embedding_types)


router.add_api_route(
    "/v2/rerank",
    rerank,
    methods=["POST"],
    response_model=RerankAnswer,
    summary="Rank documents for a query",
)


async def _answer(
    body: EmbedBody, call: DialectCall, *, version: str, types: list[EmbeddingType] | None
) -> Response:
    texts, options = body.inputs_of_texts(), body.options(call)
    if types == []:
        raise InvalidInput("embedding_types is empty", code="empty_input", param="embedding_types")
    asked_for: list[EmbeddingType] = types or ["float"]
    forms = {
        kind: vector_form(
            call.engine,
            body.model,
            options,
            dtype=_dtype(kind),
            encoding="base64" if kind == "base64" else "float",
            names={"dimensions": "output_dimension"},
        )
        for kind in asked_for
    }
    param = "inputs" if getattr(body, "inputs", None) is not None else "texts"
    names = {"input": param, "dimensions": "output_dimension"}
    found = await call.embed(texts, body.model, options, names)
    lists = {
        kind: await dump_list(form.write(embedding.vector) for embedding in found.found)
        for kind, form in forms.items()
    }
    units = {"input_tokens": found.tokens, **dropped_usage(found.costs)}
    document = {
        "id": str(uuid4()),
        "response_type": "embeddings_floats" if types is None else "embeddings_by_type",
        "embeddings": lists["float"] if types is None else lists,
        "texts": texts,
        "meta": {"api_version": {"version": version}, "billed_units": units},
    }
    return json_response(document, headers=found.headers)


def _dtype(kind: EmbeddingType) -> Dtype:
    return "float" if kind == "base64" else kind


_RERANK_FIELDS = frozenset({"rank_fields", "max_chunks_per_doc", "max_tokens_per_doc"})

DIALECT = Dialect(
    name="cohere",
    router=router,
    claims=(Claim(path="/v1/rerank", endpoint=rerank, fields=_RERANK_FIELDS),),
    error_shape=with_message,
)
