"""Jina: its fields on /v1/embeddings, with late chunking, and /v1/segment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, TypeAlias

from fastapi import Response
from pydantic import Field, WithJsonSchema

from engine.errors import InvalidInput
from engine.types import DocumentChunks, EmbedOptions, TextInput
from service.errors import report_names
from service.given_values import wrong_type
from service.http.dialects import jina_segment
from service.http.dialects.call import Call, DialectCall, Embedded
from service.http.dialects.dialect import Claim, Dialect
from service.http.dialects.dropped import dropped_usage
from service.http.dialects.outputs import Dtype, vector_form
from service.http.dialects.prompts import prompt_for
from service.http.dialects.refusals import (
    TEXT_ONLY,
    agreed,
    contradiction,
    refuse,
    refuse_given,
)
from service.http.dialects.shapes import with_detail
from service.http.json_response import (
    EncodingFormat,
    VectorForm,
    dump_list,
    json_response,
    server_timing,
)
from service.http.schemas.fields import AtLeastOne, Body, as_inputs

EmbeddingType: TypeAlias = Literal["float", "base64", "int8", "uint8", "binary", "ubinary"]

_ITEM = {"anyOf": [{"type": "string"}, {"type": "object"}]}
JinaInput: TypeAlias = Annotated[
    Any, WithJsonSchema({"anyOf": [_ITEM, {"type": "array", "minItems": 1, "items": _ITEM}]})
]


_MEDIA = ("image", "pdf", "audio", "video")
_NAMES_OF_ITEMS = frozenset({"text", *_MEDIA})


class JinaBody(Body):
    """Jina's request for embeddings."""

    input: JinaInput
    model: str | None = None
    task: str | None = Field(None, description="Picks the model's prompt, where it has one.")
    dimensions: AtLeastOne | None = None
    normalized: bool | None = True
    late_chunking: bool | None = Field(
        False, description="Read the texts as one document, and pool each of them within it."
    )
    truncate: bool | None = False
    embedding_type: EmbeddingType | list[EmbeddingType] | None = "float"
    encoding_type: EmbeddingType | None = Field(None, description="LlamaIndex's name for it.")
    encoding_format: EncodingFormat | None = None
    return_multivector: bool | None = False
    user: str | None = None

    def texts(self) -> Sequence[TextInput]:
        """Strings, and the objects with a text that Jina takes too."""
        value = self.input
        if isinstance(value, list):
            value = [_text(item, f"input[{index}]") for index, item in enumerate(value)]
        return as_inputs(_text(value, "input"), "input")

    def options(self, call: DialectCall) -> EmbedOptions:
        return EmbedOptions(
            prompt_name=prompt_for(self.task, call.resolve(self.model)),
            dimensions=self.dimensions,
            normalize=self.normalized is not False,
            truncate="end" if self.truncate else "error",
        )

    def form(self, call: DialectCall, options: EmbedOptions) -> VectorForm:
        kind: EmbeddingType | list[EmbeddingType]
        kind = agreed(self, "encoding_type", "embedding_type")
        if kind is None:
            kind = "float"
        if isinstance(kind, list):
            if len(kind) != 1:
                raise InvalidInput(
                    f"embedding_type names {len(kind)} types; ask for one at a time",
                    param="embedding_type",
                    limit=1,
                    actual=len(kind),
                )
            [kind] = kind
        if (kind, self.encoding_format) == ("base64", "float"):
            raise contradiction(
                "encoding_format is float, and embedding_type base64", "encoding_format", "float"
            )
        encoding = self.encoding_format or ("base64" if kind == "base64" else "float")
        dtype: Dtype = "float" if kind == "base64" else kind
        names = {"normalize": "normalized"}
        return vector_form(
            call.engine, self.model, options, dtype=dtype, encoding=encoding, names=names
        )


def _text(item: Any, param: str) -> Any:
    """The text of an object. Anything else is left to others to check."""
    if not isinstance(item, dict):
        return item
    if (medium := next((name for name in _MEDIA if name in item), None)) is not None:
        raise refuse(f"{param}.{medium}", item[medium], TEXT_ONLY)
    text = item.get("text")
    if not isinstance(text, str) or len(item) > 1:
        raise wrong_type(item, param, 'a string or {"text": "..."}')
    return text


async def embeddings(body: JinaBody, call: Call) -> Response:
    refuse_given(body, {"return_multivector": "/pooling and /embed_all give the states of tokens"})
    texts, options = body.texts(), body.options(call)
    form = body.form(call, options)
    if body.late_chunking:
        document = await _read_as_one(texts, options, body, call)
        vectors = [chunk.vector for chunk in document.chunks]
        tokens, headers = document.accounting.tokens_embedded, server_timing([document.accounting])
        dropped: dict[str, int] = {}
    else:
        found: Embedded = await call.embed(texts, body.model, options, {})
        vectors = [embedding.vector for embedding in found.found]
        tokens, headers, dropped = found.tokens, found.headers, dropped_usage(found.costs)
    call.record.tokens = tokens
    items = (
        {"object": "embedding", "index": index, "embedding": form.write(vector)}
        for index, vector in enumerate(vectors)
    )
    document_of_answer = {
        "object": "list",
        "data": await dump_list(items),
        "model": body.model or call.record.model,
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens, **dropped},
    }
    return json_response(document_of_answer, headers=headers)


async def _read_as_one(
    texts: Sequence[TextInput], options: EmbedOptions, body: JinaBody, call: DialectCall
) -> DocumentChunks:
    """Late chunking as Jina defines it: pooled within the document, and nothing else."""
    for index, text in enumerate(texts):
        if not isinstance(text, str):
            raise InvalidInput(
                f"input[{index}] must be a text: late_chunking reads no token ids",
                code="invalid_type",
                param=f"input[{index}]",
            )
    names = [f"input[{index}]" for index in range(len(texts))]
    with report_names({"documents": ["input"], "chunks": names}):
        [document] = await call.engine.embed_given_chunks(
            [[str(text) for text in texts]],
            model=body.model,
            context="late",
            options=options,
            timeout_s=call.timeout_s,
        )
    return document


def _has_jinas_values(document: Mapping[str, Any]) -> bool:
    value = document.get("input")
    items = value if isinstance(value, list) else [value]
    return isinstance(document.get("truncate"), bool) or any(map(_is_jinas, items))


def _is_jinas(item: Any) -> bool:
    return isinstance(item, dict) and not item.keys().isdisjoint(_NAMES_OF_ITEMS)


_FIELDS = frozenset(
    {
        *("task", "late_chunking", "normalized"),
        *("embedding_type", "encoding_type", "return_multivector"),
    }
)

DIALECT = Dialect(
    name="jina",
    router=jina_segment.router,
    claims=(
        Claim(
            path="/v1/embeddings",
            endpoint=embeddings,
            fields=_FIELDS,
            is_theirs=_has_jinas_values,
        ),
    ),
    error_shape=with_detail,
)
