"""Voyage's POST /v1/contextualizedembeddings: vectors of chunks that know their document."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Any, NamedTuple

from fastapi import APIRouter, Response
from pydantic import BeforeValidator, Field, WithJsonSchema

from engine.async_engine import AsyncEngine
from engine.errors import InvalidInput
from engine.execution.given_chunks import check_document_count
from engine.scheduling.deadline import Deadline
from engine.types import (
    Accounting,
    Chunking,
    ChunkPlan,
    DocumentChunks,
    Embedding,
    SentencePlan,
    Vector,
)
from service.errors import report_names
from service.fairness import cooperatively
from service.given_values import wrong_type
from service.http.dependencies import Engine, Record, TimeoutS
from service.http.dialects.voyage_fields import VectorFields
from service.http.json_request import JsonRoute
from service.http.json_response import VectorForm, dump_list, json_response, server_timing
from service.http.schemas.fields import AtLeastOne, AtLeastZero
from service.http.schemas.responses.base import Described

CHUNKER_VERSION = "lln-1"
"""Changes whenever the same text would be cut in other places."""

router = APIRouter(route_class=JsonRoute, tags=["Voyage"])

_TEXTS_SCHEMA = {"type": "array", "minItems": 1, "items": {"type": "string", "minLength": 1}}
_LISTS_SCHEMA = {"type": "array", "minItems": 1, "items": _TEXTS_SCHEMA}
_INPUTS_SCHEMA = {"anyOf": [_TEXTS_SCHEMA, _LISTS_SCHEMA]}


def _read_inputs(value: Any) -> list[str | list[str]]:
    """Checks types alone. pydantic would report a list of lists branch by branch."""
    if not isinstance(value, list):
        raise wrong_type(value, "inputs", "a list of lists of texts")
    for place, item in enumerate(value):
        if isinstance(item, list):
            for chunk_place, chunk in enumerate(item):
                if not isinstance(chunk, str):
                    raise wrong_type(chunk, f"inputs[{place}][{chunk_place}]", "a text")
        elif not isinstance(item, str):
            raise wrong_type(item, f"inputs[{place}]", "a list of texts")
    return value


class ContextualBody(VectorFields):
    """Voyage's request for vectors of chunks that know their document."""

    inputs: Annotated[Any, BeforeValidator(_read_inputs), WithJsonSchema(_INPUTS_SCHEMA)] = Field(
        description="Documents, each a list of its chunks. A list of one text is a query or a "
        "plain text. With enable_auto_chunking, whole documents."
    )
    enable_auto_chunking: bool | None = False
    chunk_size: AtLeastOne | None = Field(
        None, description="Most tokens of a chunk that is cut here (256)."
    )
    chunk_overlap: AtLeastZero | None = Field(
        None, description="Tokens that a chunk shares with the one before (0)."
    )


class ContextualChunk(Described):
    object: str
    embedding: list[float] | list[int] | str
    index: int
    text: str | None = None


class ContextualDocument(Described):
    object: str
    data: list[ContextualChunk]
    index: int


class ContextualUsage(Described):
    total_tokens: int


class ContextualAnswer(Described):
    object: str
    data: list[ContextualDocument]
    model: str
    usage: ContextualUsage
    chunker_version: str | None = None


@router.post(
    "/v1/contextualizedembeddings",
    response_model=ContextualAnswer,
    summary="Embed chunks within their documents",
)
async def contextualized_embeddings(
    body: ContextualBody, engine: Engine, timeout_s: TimeoutS, record: Record
) -> Response:
    """A vector for each chunk, read within its document: those of `/v1/documents` for the same
    spans. Given chunks are tokenised one by one, and each document is read in one pass."""
    record.model = engine.resolve(body.model).name
    form = body.form(engine)
    with report_names({"documents": "inputs"}):
        check_document_count(len(body.inputs), engine.config)
    if body.enable_auto_chunking:
        documents = await _cut_documents(body, engine, timeout_s)
    else:
        async with Deadline(timeout_s).over():  # both parts of it together
            documents = await _given_documents(body, engine, timeout_s)
    costs = [document.cost for document in documents]
    tokens = record.tokens = _num_tokens(costs)
    data = [
        {"object": "list", "data": await dump_list(document.items(form)), "index": index}
        async for index, document in cooperatively(enumerate(documents))
    ]
    answer = {
        "object": "list",
        "data": data,
        "model": body.model or record.model,
        "usage": {"total_tokens": tokens},
    }
    if body.enable_auto_chunking:
        answer["chunker_version"] = CHUNKER_VERSION
    return json_response(answer, headers=server_timing(costs))


class _Document(NamedTuple):
    """The vectors of one item of `inputs`."""

    vectors: Sequence[Vector]
    texts: Sequence[str] | None
    cost: Accounting

    def items(self, form: VectorForm) -> Iterator[dict[str, Any]]:
        for index, vector in enumerate(self.vectors):
            item = {"object": "embedding", "embedding": form.write(vector), "index": index}
            if self.texts is not None:
                item["text"] = self.texts[index]
            yield item

    @classmethod
    def of_text(cls, embedding: Embedding) -> _Document:
        return cls([embedding.vector], None, embedding.accounting)

    @classmethod
    def of_chunks(cls, document: DocumentChunks) -> _Document:
        return cls([chunk.vector for chunk in document.chunks], None, document.accounting)


async def _given_documents(
    body: ContextualBody, engine: AsyncEngine, timeout_s: float
) -> list[_Document]:
    """Chunks of documents, and plain texts or queries among them, in their order."""
    _refuse_options_of_auto_chunking(body)
    plain = _Plain.among(body)
    chunked = [place for place in range(len(body.inputs)) if place not in plain.texts]
    found: dict[int, _Document] = {}
    options = body.options(engine)
    if plain.texts:
        with report_names({"input": plain.names, "dimensions": "output_dimension"}):
            texts = await engine.embed(
                list(plain.texts.values()), model=body.model, options=options, timeout_s=timeout_s
            )
        found.update(zip(plain.texts, map(_Document.of_text, texts), strict=True))
    if chunked:
        names = [f"inputs[{place}]" for place in chunked]
        with report_names({"documents": names, "dimensions": "output_dimension"}):
            documents = await engine.embed_given_chunks(
                [list(body.inputs[place]) for place in chunked],
                model=body.model,
                options=options,
                timeout_s=timeout_s,
            )
        found.update(zip(chunked, map(_Document.of_chunks, documents), strict=True))
    return [found[place] for place in range(len(body.inputs))]


class _Plain(NamedTuple):
    """The inputs that are one text each, which no document surrounds."""

    texts: dict[int, str]
    names: list[str]

    @classmethod
    def among(cls, body: ContextualBody) -> _Plain:
        texts: dict[int, str] = {}
        names: list[str] = []
        for place, item in enumerate(body.inputs):
            if isinstance(item, str):
                if body.input_type == "document":
                    raise InvalidInput(
                        "inputs is a list of texts, which are queries unless enable_auto_chunking "
                        "is true; send each document as a list of its chunks",
                        code="invalid_type",
                        param="inputs",
                    )
                texts[place] = item
                names.append(f"inputs[{place}]")
            elif len(item) == 1:
                texts[place] = item[0]
                names.append(f"inputs[{place}][0]")
            elif body.input_type == "query" and item:
                raise InvalidInput(
                    f"inputs[{place}] has {len(item)} texts; a query is one",
                    code="too_many_inputs",
                    param=f"inputs[{place}]",
                    limit=1,
                    actual=len(item),
                )
        return cls(texts, names)


async def _cut_documents(
    body: ContextualBody, engine: AsyncEngine, timeout_s: float
) -> list[_Document]:
    texts = _whole_texts(body)
    single = "" if all(isinstance(item, str) for item in body.inputs) else "[0]"
    names = {
        "documents": [f"inputs[{place}]{single}" for place in range(len(texts))],
        "dimensions": "output_dimension",
    }
    with report_names(names):
        documents = await engine.embed_chunks_of(
            texts,
            model=body.model,
            chunks=_chunking(body),
            options=body.options(engine),
            timeout_s=timeout_s,
        )
    return [
        _cut(text, document, place)
        for place, (text, document) in enumerate(zip(texts, documents, strict=True))
    ]


def _cut(text: str, document: DocumentChunks, place: int) -> _Document:
    if not document.chunks:
        raise InvalidInput(
            f"inputs[{place}] is only white space, so it has no chunk",
            code="empty_text",
            param=f"inputs[{place}]",
        )
    spans = [chunk.characters for chunk in document.chunks]
    texts = [text[span.start : span.end] for span in spans]
    return _Document.of_chunks(document)._replace(texts=texts)


def _whole_texts(body: ContextualBody) -> list[str]:
    if body.input_type == "query":
        raise InvalidInput(
            "enable_auto_chunking is for documents, and input_type is query",
            param="enable_auto_chunking",
            limit="document",
            actual="query",
        )
    texts = []
    for place, item in enumerate(body.inputs):
        if isinstance(item, list) and len(item) != 1:
            raise InvalidInput(
                f"inputs[{place}] has {len(item)} chunks; with enable_auto_chunking it is one text",
                code="too_many_inputs" if item else "empty_input",
                param=f"inputs[{place}]",
                limit=1,
                actual=len(item),
            )
        texts.append(item if isinstance(item, str) else item[0])
    return texts


def _chunking(body: ContextualBody) -> Chunking:
    """Whole sentences up to the size asked for. Only pieces of fixed size can overlap."""
    size = ChunkPlan.tokens if body.chunk_size is None else body.chunk_size
    if size < 1:
        raise InvalidInput(
            f"chunk_size must be at least 1, got {size}",
            code="invalid_chunking",
            param="chunk_size",
            limit=1,
            actual=size,
        )
    if body.chunk_overlap:
        if body.chunk_overlap >= size:
            raise InvalidInput(
                f"chunk_overlap must be less than chunk_size, {size}, got {body.chunk_overlap}",
                code="invalid_chunking",
                param="chunk_overlap",
                limit=size - 1,
                actual=body.chunk_overlap,
            )
        return ChunkPlan(tokens=size, overlap=body.chunk_overlap)
    return SentencePlan(min_tokens=size, max_tokens=size)


def _refuse_options_of_auto_chunking(body: ContextualBody) -> None:
    for name in ("chunk_size", "chunk_overlap"):
        if getattr(body, name) is not None:
            raise InvalidInput(
                f"{name} needs enable_auto_chunking: the chunks are given", param=name
            )


def _num_tokens(costs: Iterable[Accounting]) -> int:
    return sum(cost.tokens_embedded for cost in costs)
