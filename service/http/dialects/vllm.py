"""vLLM: /pooling, /score, its fields on /v1/embeddings, and the tokens of a prompt."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any
from uuid import uuid4

import numpy as np
from fastapi import APIRouter, Response

from engine.errors import InvalidInput
from engine.scheduling.deadline import Deadline
from engine.types import EmbedOptions
from service.errors import report_names
from service.fairness import cooperatively
from service.given_values import wrong_type
from service.http.dialects.binary import (
    BINARY,
    as_bytes,
    bytes_response,
    check_places_fit,
)
from service.http.dialects.call import Call, DialectCall, Embedded
from service.http.dialects.dialect import Claim, Dialect
from service.http.dialects.dropped import dropped_usage
from service.http.dialects.ranking import rerank
from service.http.dialects.refusals import refuse
from service.http.dialects.vllm_bodies import (
    DetokenizeBody,
    EmbedBody,
    PoolingAnswer,
    PoolingBody,
    Prompt,
    ScoreAnswer,
    ScoreBody,
    TokenizeBody,
    Version,
)
from service.http.json_request import JsonRoute
from service.http.json_response import dump_array, dump_list, encode_vector, json_response
from service.http.schemas.fields import as_inputs
from service.version import version_of

router = APIRouter(route_class=JsonRoute, tags=["vLLM"])


async def embeddings(body: EmbedBody, call: Call) -> Response:
    return await _embed(body, call, each_token=False, kind="embedding", prefix="embd")


@router.post("/pooling", response_model=PoolingAnswer, summary="The states of tokens, or vectors")
async def pooling(body: PoolingBody, call: Call) -> Response:
    """For each text the state of each of its tokens, special ones included, not normalised; with
    `task` `embed` its vector."""
    if body.task not in ("token_embed", "embed", None):
        raise refuse("task", body.task, "the models embed: token_embed and embed are served")
    each_token = body.task != "embed"
    return await _embed(body, call, each_token=each_token, kind="pooling", prefix="pool")


async def _embed(
    body: EmbedBody, call: DialectCall, *, each_token: bool, kind: str, prefix: str
) -> Response:
    body.check()
    options = body.options(call, body.dimensions)
    if each_token and body.use_activation is None:
        options = _not_normalised(options)
    names = {"max_tokens": "truncate_prompt_tokens"}
    inputs = as_inputs(body.input, "input")
    if body.encoding_format == "bytes":
        check_places_fit(len(inputs))
    found = await call.embed(inputs, body.model, options, names, each_token=each_token)
    head = _head(body.model, call, prefix, found)
    vectors = [embedding.vector for embedding in found.found]
    if body.encoding_format in BINARY:
        return bytes_response(
            vectors, *body.binary, head, found.headers, with_head=body.encoding_format == "bytes"
        )
    name = "data" if kind == "pooling" else "embedding"
    items = [
        {"index": index, "object": kind, name: await _written(vector, body)}
        async for index, vector in cooperatively(enumerate(vectors))
    ]
    return json_response({**head, "data": items}, headers=found.headers)


def _not_normalised(options: EmbedOptions) -> EmbedOptions:
    return EmbedOptions(
        dimensions=options.dimensions,
        normalize=False,
        truncate=options.truncate,
        max_tokens=options.max_tokens,
    )


async def _written(vector: Any, body: EmbedBody) -> Any:
    if body.encoding_format == "base64":
        return encode_vector(as_bytes(vector, *body.binary), "base64")
    return await dump_array(vector) if vector.ndim > 1 else vector


def _head(model: str | None, call: DialectCall, prefix: str, found: Embedded) -> dict[str, Any]:
    return {
        "id": f"{prefix}-{uuid4().hex}",
        "object": "list",
        "created": int(time.time()),
        "model": model or call.record.model,
        "usage": {
            "prompt_tokens": found.tokens,
            "total_tokens": found.tokens,
            **dropped_usage(found.costs),
        },
    }


@router.post("/score", response_model=ScoreAnswer, summary="Compare texts")
@router.post("/v1/score", response_model=ScoreAnswer, summary="Compare texts")
async def score(body: ScoreBody, call: Call) -> Response:
    """The cosine of the vectors of each pair. A single first text is compared with all others."""
    one, firsts, other, seconds = body.sides()
    options = replace(body.options(call), normalize=True)  # cosines, whatever becomes of vectors
    places = [*_places(one, firsts, body), *_places(other, seconds, body)]
    names: Mapping[str, str | Sequence[str]] = {
        "input": places or other,
        "max_tokens": "truncate_prompt_tokens",
    }
    if not seconds:
        raise InvalidInput(f"{other} has no texts", code="empty_input", param=other, limit=1)
    _check_number(len(firsts) + len(seconds), one, other, call)
    found = await call.embed([*firsts, *seconds], body.model, options, names)
    vectors = [embedding.vector for embedding in found.found]
    left, right = vectors[: len(firsts)], vectors[len(firsts) :]
    pairs = zip(left * (len(right) // len(left)), right, strict=True)
    items = (
        {"index": index, "object": "score", "score": float(first @ second)}
        for index, (first, second) in enumerate(pairs)
    )
    head = _head(body.model, call, "score", found)
    return json_response({**head, "data": await dump_list(items)}, headers=found.headers)


def _check_number(count: int, one: str, other: str, call: DialectCall) -> None:
    """The engine counts the texts of both sides, and would name one of them."""
    if count > (most := call.engine.config.max_inputs):
        raise InvalidInput(
            f"{one} and {other} hold {count} texts together, the limit is {most}",
            code="too_many_inputs",
            param=other,
            limit=most,
            actual=count,
        )


def _places(name: str, texts: Sequence[str], body: ScoreBody) -> list[str]:
    if isinstance(getattr(body, name), str):
        return [name]
    return [f"{name}[{index}]" for index in range(len(texts))]


async def tokenize(body: TokenizeBody, call: Call) -> Response:
    """Token ids, with the special tokens around them unless `add_special_tokens` is false."""
    info = call.resolve(body.model)
    with report_names({"text": "prompt"}):
        found = await call.engine.tokenize(body.prompt, model=body.model, timeout_s=call.timeout_s)
    call.record.tokens = len(found.ids)
    starts, ends = found.offsets.T
    [chosen] = np.nonzero((starts < ends) | (body.add_special_tokens is not False))
    strings = await dump_list(found.tokens[place] for place in chosen)
    document = {
        "count": len(chosen),
        "max_model_len": info.max_tokens,
        "tokens": await dump_array(found.ids[chosen]),
        "token_strs": strings if body.return_token_strs else None,
    }
    return json_response(document)


@router.post("/detokenize", response_model=Prompt, summary="The text of tokens")
async def detokenize(body: DetokenizeBody, call: Call) -> Response:
    """The text of token ids. Tokenising it again need not give the same ids."""
    call.resolve(body.model)
    ids = _listed(body.tokens)
    with report_names({"ids": "tokens"}):
        async with Deadline(call.timeout_s).over():
            text = await call.engine.decode(ids, model=body.model, skip_special_tokens=False)
    call.record.tokens = len(ids)
    return json_response({"prompt": text})


def _listed(ids: Any) -> Any:
    """Raises InvalidInput for what is no list, in words of JSON. The engine checks the ids."""
    if not isinstance(ids, list | np.ndarray):
        raise wrong_type(ids, "tokens", "a list of token ids")
    return ids


@router.get("/version", response_model=Version, summary="The version of LLN")
async def version() -> Response:
    return json_response({"version": version_of("lln")})


def _has_vllms_values(document: Mapping[str, Any]) -> bool:
    return document.get("encoding_format") in BINARY or isinstance(document.get("priority"), int)


_FIELDS = frozenset(
    {
        *("truncate_prompt_tokens", "truncation_side", "add_special_tokens", "embed_dtype"),
        *("endianness", "request_id", "use_activation", "cache_salt", "padding"),
        "mm_processor_kwargs",
    }
)

DIALECT = Dialect(
    name="vllm",
    router=router,
    claims=(
        Claim(
            path="/v1/embeddings",
            endpoint=embeddings,
            fields=_FIELDS,
            is_theirs=_has_vllms_values,
        ),
        Claim(path="/tokenize", endpoint=tokenize, fields=frozenset({"prompt"})),
        Claim(path="/rerank", endpoint=rerank, fields=frozenset({"documents"})),
        Claim(
            path="/v1/rerank",
            endpoint=rerank,
            fields=_FIELDS | {"instruction", "max_tokens_per_query"},
            is_theirs=_has_vllms_values,
        ),
    ),
)
