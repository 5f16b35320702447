"""text-embeddings-inference's tokens: POST /tokenize and /decode, and its /predict, refused."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import cast

from fastapi import APIRouter, Response

from engine.errors import InvalidInput, TextTooLong
from engine.scheduling.deadline import Deadline
from service.errors import NotAvailable, report_params
from service.http.dependencies import Engine, Record, TimeoutS
from service.http.json_request import JsonRoute
from service.http.json_response import dump_list, json_response
from service.http.schemas.fields import as_inputs
from service.http.schemas.responses.tokens import TextList, TokenLists
from service.http.schemas.tei import DecodeBody, TokensBody
from service.tokens import tokens_of

router = APIRouter(route_class=JsonRoute, tags=["text-embeddings-inference"])


@router.post("/tokenize", response_model=TokenLists, summary="The tokens of texts")
async def tokenize_texts(
    body: TokensBody, engine: Engine, timeout_s: TimeoutS, record: Record
) -> Response:
    """For each text its tokens. `start` and `stop` are characters, of the prompt and the text
    together; special tokens have none."""
    record.model = engine.resolve(body.model).name
    lone = isinstance(body.inputs, str)
    texts = [body.inputs] if isinstance(body.inputs, str) else body.inputs
    _check_count(texts, "inputs", engine)
    lists = []
    record.tokens = 0
    async with Deadline(timeout_s).over():
        for index, text in enumerate(texts):
            with _reported("text", "inputs", None if lone else index):
                count, tokens = await tokens_of(
                    engine,
                    text,
                    model=body.model,
                    prompt_name=body.prompt_name,
                    keep_special=body.add_special_tokens,
                )
            record.tokens += count
            _check_answer(record.tokens, engine)
            lists.append(await dump_list(token._asdict() for token in tokens))
    return json_response(lists)


@router.post("/decode", response_model=TextList, summary="The text of token ids")
async def decode(body: DecodeBody, engine: Engine, timeout_s: TimeoutS, record: Record) -> Response:
    """For each list of ids its text."""
    record.model = engine.resolve(body.model).name
    lists = as_inputs(body.ids, "ids", texts=False)
    lone = lists is not body.ids
    _check_count(lists, "ids", engine)
    texts = []
    async with Deadline(timeout_s).over():
        for index, ids in enumerate(lists):
            with _reported("ids", "ids", None if lone else index):
                texts.append(
                    await engine.decode(
                        cast(Sequence[int], ids),  # the engine checks it
                        model=body.model,
                        skip_special_tokens=body.skip_special_tokens,
                    )
                )
    return json_response(await dump_list(texts))


@router.post("/predict", summary="Not available: these models do not classify")
async def predict() -> Response:
    raise NotAvailable(
        "the models of this server embed texts and do not classify them; /embed gives their "
        "vectors, /rerank scores texts for a query, /similarity compares texts",
        code="not_a_classifier",
    )


def _check_count(items: Sequence[object], param: str, engine: Engine) -> None:
    most = engine.config.max_inputs
    if not 1 <= len(items) <= most:
        raise InvalidInput(
            f"{param} must hold 1 to {most} items, got {len(items)}",
            code="too_many_inputs" if items else "empty_input",
            param=param,
            limit=most,
            actual=len(items),
        )


def _check_answer(num_tokens: int, engine: Engine) -> None:
    """Each token is an object of the answer, whichever text it is of."""
    most = engine.config.max_text_tokens
    if num_tokens > most:
        raise TextTooLong(
            f"the texts have more than {most} tokens together, which is the limit of one answer",
            param="inputs",
            limit=most,
            actual=num_tokens,
        )


def _reported(old: str, name: str, index: int | None) -> AbstractContextManager[None]:
    """Errors about the engine's one input name it as it is in the request."""
    new = name if index is None else f"{name}[{index}]"
    return report_params(lambda param: new if param == old else param)
