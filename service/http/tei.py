"""POST /embed and /embed_all: text-embeddings-inference's contract, so that its clients work."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from fastapi import APIRouter, Response

from engine.types import Embedding, Vector
from service.http.answers import TokenStates, VectorList
from service.http.dependencies import Engine, Record, TimeoutS
from service.http.inputs import as_inputs
from service.http.json import JsonRoute, dump_list, json_response
from service.http.schemas import EmbedBody, TokenStatesBody
from service.http.vectors import encode_vector, server_timing
from service.params import input_told_as

router = APIRouter(route_class=JsonRoute, tags=["text-embeddings-inference"])


@router.post("/embed", response_model=VectorList, summary="Embed texts, answered as a bare list")
async def embed(body: EmbedBody, engine: Engine, timeout_s: TimeoutS, record: Record) -> Response:
    """One vector for each text, in order."""
    model = record.model = engine.resolve(body.model).name
    inputs = as_inputs(body.inputs, "inputs")
    with input_told_as("inputs", lone=inputs is not body.inputs):
        found = await engine.embed(inputs, model=model, options=body.options(), timeout_s=timeout_s)
    record.tokens = _num_tokens(found)
    vectors = (encode_vector(embedding.vector, "float") for embedding in found)
    return await _answer(vectors, found)


@router.post("/embed_all", response_model=TokenStates, summary="The state of every token of texts")
async def embed_all(
    body: TokenStatesBody, engine: Engine, timeout_s: TimeoutS, record: Record
) -> Response:
    """For each text a vector for each of its tokens, special ones included, not normalised."""
    model = record.model = engine.resolve(body.model).name
    inputs = as_inputs(body.inputs, "inputs")
    with input_told_as("inputs", lone=inputs is not body.inputs):
        found = await engine.embed_tokens(
            inputs, model=model, options=body.options(), timeout_s=timeout_s
        )
    record.tokens = _num_tokens(found)
    return await _answer([await dump_list(_rows(item.vector)) for item in found], found)


def _num_tokens(found: Sequence[Embedding]) -> int:
    return sum(embedding.accounting.tokens_embedded for embedding in found)


def _rows(states: Vector) -> Iterator[Vector | str]:
    return (encode_vector(state, "float") for state in states)


async def _answer(items: Any, found: Sequence[Embedding]) -> Response:
    costs = [embedding.accounting for embedding in found]
    headers = {
        "x-compute-tokens": str(_num_tokens(found)),
        "x-queue-time": _milliseconds(max(cost.queue_s for cost in costs)),
        "x-inference-time": _milliseconds(max(cost.compute_s for cost in costs)),
        **server_timing(costs),
    }
    return json_response(await dump_list(items), headers=headers)


def _milliseconds(seconds: float) -> str:
    return str(round(seconds * 1000))
