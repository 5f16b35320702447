"""POST /embed and /embed_all: text-embeddings-inference's contract. Its clients work unchanged.

Its GET /info is in routes/models.py: clients of ours read the same route.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter, Response

from engine.model.quantized import check_output_dtype
from engine.types import Embedding
from service.errors import report_input_as
from service.http.dependencies import Engine, Record, TimeoutS
from service.http.json_request import JsonRoute
from service.http.json_response import (
    VectorForm,
    dump_list,
    encode_vector,
    json_response,
    server_timing,
)
from service.http.schemas.fields import as_inputs
from service.http.schemas.responses import TokenStates, VectorList
from service.http.schemas.tei import EmbedBody, TokenStatesBody

router = APIRouter(route_class=JsonRoute, tags=["text-embeddings-inference"])


@router.post("/embed", response_model=VectorList, summary="Embed texts, answered as a bare list")
async def embed(body: EmbedBody, engine: Engine, timeout_s: TimeoutS, record: Record) -> Response:
    """One vector for each text, in order."""
    info, options = engine.resolve(body.model), body.options()
    record.model = info.name
    check_output_dtype(body.output_dtype, options, info)
    inputs = as_inputs(body.inputs, "inputs")
    with report_input_as("inputs", lone=inputs is not body.inputs):
        found = await engine.embed(inputs, model=body.model, options=options, timeout_s=timeout_s)
    record.tokens = _num_tokens(found)
    form = VectorForm(body.output_dtype, "float", info)
    vectors = (form.write(embedding.vector) for embedding in found)
    return await _answer(vectors, found)


@router.post("/embed_all", response_model=TokenStates, summary="The state of every token of texts")
async def embed_all(
    body: TokenStatesBody, engine: Engine, timeout_s: TimeoutS, record: Record
) -> Response:
    """For each text, a vector for each of its tokens, special tokens included, not normalised."""
    record.model = engine.resolve(body.model).name
    inputs = as_inputs(body.inputs, "inputs")
    with report_input_as("inputs", lone=inputs is not body.inputs):
        found = await engine.embed_tokens(
            inputs, model=body.model, options=body.options(), timeout_s=timeout_s
        )
    record.tokens = _num_tokens(found)
    states = ((encode_vector(state, "float") for state in item.vector) for item in found)
    return await _answer([await dump_list(rows) for rows in states], found)


def _num_tokens(found: Sequence[Embedding]) -> int:
    return sum(embedding.accounting.tokens_embedded for embedding in found)


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
