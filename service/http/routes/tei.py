"""text-embeddings-inference's vectors and scores. Its clients work unchanged.

Its tokens are in routes/tei_tokens.py, and its GET /info in routes/models.py: clients of ours read
the same route.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from fastapi import APIRouter, Response

from engine.errors import InvalidInput
from engine.model.quantized import check_output_dtype
from engine.types import Accounting, Embedding, RankedText
from service.errors import report_input_as, report_params
from service.fairness import cooperatively
from service.http.dependencies import Engine, Record, TimeoutS
from service.http.json_request import JsonRoute
from service.http.json_response import (
    VectorForm,
    dump_array,
    dump_list,
    json_response,
    server_timing,
    span,
)
from service.http.schemas.fields import as_inputs
from service.http.schemas.responses.embedding import TokenStates, VectorList
from service.http.schemas.responses.ranking import RankList, ScoreList
from service.http.schemas.tei import EmbedBody, RerankBody, SimilarityBody, TokenStatesBody

router = APIRouter(route_class=JsonRoute, tags=["text-embeddings-inference"])

_INPUT = re.compile(r"input\[(\d+)\]")


@router.post("/embed", response_model=VectorList, summary="Embed texts, answered as a bare list")
async def embed(body: EmbedBody, engine: Engine, timeout_s: TimeoutS, record: Record) -> Response:
    """One vector for each text, in order."""
    info, options = engine.resolve(body.model), body.options()
    record.model = info.name
    check_output_dtype(body.output_dtype, options, info)
    inputs = as_inputs(body.inputs, "inputs")
    with report_input_as("inputs", lone=inputs is not body.inputs):
        found = await engine.embed(inputs, model=body.model, options=options, timeout_s=timeout_s)
    record.tokens = _num_tokens(_costs(found))
    form = VectorForm(body.output_dtype, "float", info)
    vectors = (form.write(embedding.vector) for embedding in found)
    return await _answer(vectors, _costs(found))


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
    record.tokens = _num_tokens(_costs(found))
    states = [await dump_array(item.vector) async for item in cooperatively(found)]
    return await _answer(states, _costs(found))


@router.post("/rerank", response_model=RankList, summary="Rank texts for a query")
async def rerank(body: RerankBody, engine: Engine, timeout_s: TimeoutS, record: Record) -> Response:
    """The texts, those that answer the query best first.

    A text of more than 256 tokens is scored by its best passage, whose characters are in `passage`.
    The header `x-lln-scoring` says how texts were scored.
    """
    record.model = engine.resolve(body.model).name
    found = await engine.rank(
        body.query, body.texts, model=body.model, options=body.options(), timeout_s=timeout_s
    )
    record.tokens = found.tokens
    ranks = (_rank(one, body) for one in found.texts)
    return await _answer(ranks, found.accountings, {"x-lln-scoring": found.scoring})


def _rank(found: RankedText, body: RerankBody) -> dict[str, Any]:
    text = {"text": body.texts[found.index]} if body.return_text else {}
    return {
        "index": found.index,
        **text,
        "score": found.score if body.raw_scores else found.relevance,
        "passage": span(found.passage),
    }


@router.post("/similarity", response_model=ScoreList, summary="Compare a text with others")
async def similarity(
    body: SimilarityBody, engine: Engine, timeout_s: TimeoutS, record: Record
) -> Response:
    """The cosine of each sentence's vector with that of `source_sentence`, in order."""
    record.model = engine.resolve(body.model).name
    sentences = body.inputs.sentences
    if not sentences:
        raise InvalidInput(
            "inputs.sentences is empty",
            code="empty_input",
            param="inputs.sentences",
            limit=1,
            actual=0,
        )
    with report_params(_param_of_similarity):
        found = await engine.embed(
            [body.inputs.source_sentence, *sentences],
            model=body.model,
            options=body.options(),
            timeout_s=timeout_s,
        )
    record.tokens = _num_tokens(_costs(found))
    source, *others = (embedding.vector for embedding in found)
    cosines = (float(source @ other) for other in others)
    return await _answer(cosines, _costs(found))


def _param_of_similarity(param: str) -> str:
    """The engine's input 0 is the source sentence, and 1 is sentence 0."""
    found = _INPUT.fullmatch(param)
    if found is None:
        return "inputs" if param == "input" else param
    index = int(found[1])
    return f"inputs.sentences[{index - 1}]" if index else "inputs.source_sentence"


def _num_tokens(costs: Iterable[Accounting]) -> int:
    return sum(cost.tokens_embedded + cost.tokens_alone for cost in costs)


async def _answer(
    items: Any, costs: Sequence[Accounting], more_headers: Mapping[str, str] = MappingProxyType({})
) -> Response:
    headers = {
        "x-compute-tokens": str(_num_tokens(costs)),
        "x-queue-time": _milliseconds(max(cost.queue_s for cost in costs)),
        "x-inference-time": _milliseconds(max(cost.compute_s for cost in costs)),
        **server_timing(costs),
        **more_headers,
    }
    return json_response(await dump_list(items), headers=headers)


def _milliseconds(seconds: float) -> str:
    return str(round(seconds * 1000))


def _costs(found: Sequence[Embedding]) -> list[Accounting]:
    return [embedding.accounting for embedding in found]
