"""Jina's POST /v1/segment: a text's tokens, and the text cut into whole sentences."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from fastapi import APIRouter, Response
from numpy.typing import NDArray
from pydantic import Field

from engine.errors import InvalidInput
from engine.scheduling.deadline import Deadline
from engine.types import Span, Tokenization
from service.errors import report_names
from service.fairness import cooperatively
from service.http.dialects.call import Call
from service.http.json_request import JsonRoute
from service.http.json_response import WrittenJson, dump_list, json_response
from service.http.schemas.fields import AtLeastOne, Body, Text
from service.http.schemas.responses.base import Described

router = APIRouter(route_class=JsonRoute, tags=["Jina"])

_NAMES = {"text": "content", "model": "tokenizer", "max_characters": "max_chunk_length"}


class SegmentBody(Body):
    """Jina's request to cut a text."""

    content: Text
    tokenizer: str | None = Field(
        None, description="A model of this server: the text is cut into its tokens."
    )
    return_tokens: bool | None = False
    return_chunks: bool | None = False
    max_chunk_length: AtLeastOne | None = Field(None, description="In characters (1,000).")
    head: AtLeastOne | None = Field(None, description="Only the first tokens, this many of them.")
    tail: AtLeastOne | None = Field(None, description="Only the last tokens, this many of them.")

    def check(self) -> None:
        for name in ("head", "tail", "max_chunk_length"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InvalidInput(
                    f"{name} must be at least 1, got {value}", param=name, limit=1, actual=value
                )
        if self.head is not None and self.tail is not None:
            raise InvalidInput("give head or tail, and not both", param="tail")

    @property
    def kept(self) -> slice:
        return slice(self.head) if self.tail is None else slice(-self.tail, None)


class SegmentUsage(Described):
    tokens: int


class Segmented(Described):
    num_tokens: int
    tokenizer: str
    usage: SegmentUsage
    num_chunks: int | None = None
    chunk_positions: list[list[int]] | None = None
    chunks: list[str] | None = None
    tokens: list[list[list[str | list[int]]]] | None = None


@router.post("/v1/segment", response_model=Segmented, summary="Cut a text into sentences")
async def segment(body: SegmentBody, call: Call) -> Response:
    """The number of tokens, and if asked for the tokens and chunks: whole sentences up to
    `max_chunk_length` characters. Chunks put together are the text, but for white space before the
    first of them and where a chunk has no room for it. Tokens are in a list for each chunk, or in
    one list without chunks."""
    body.check()
    with report_names(_NAMES):
        model = call.resolve(body.tokenizer).name
        async with Deadline(call.timeout_s).over():
            found = await call.engine.tokenize(body.content, model=model)
            begin, end = found.offsets.T
            [every] = np.nonzero(begin < end)  # without the special ones
            tokens = every[body.kept]
            text, first = body.content, 0
            if 0 < len(tokens) < len(every):
                first = int(begin[tokens[0]])
                text = text[first : int(end[tokens[-1]])]
            spans = [Span(0, len(text))]
            if body.return_chunks:
                most = 1000 if body.max_chunk_length is None else body.max_chunk_length
                spans = await call.engine.cut_text(text, max_characters=most)
    call.record.tokens = len(tokens)
    answer: dict[str, Any] = {
        "num_tokens": len(tokens),
        "tokenizer": body.tokenizer or model,
        "usage": {"tokens": 0},
    }
    if body.return_chunks:
        places = ([first + span.start, first + span.end] for span in spans)
        answer["num_chunks"] = len(spans)
        answer["chunk_positions"] = await dump_list(places)
        answer["chunks"] = await dump_list(text[slice(*span)] for span in spans)
    if body.return_tokens:
        starts = [first + span.start for span in spans]
        answer["tokens"] = await _by_chunk(found, tokens, starts)
    return json_response(answer)


async def _by_chunk(
    found: Tokenization, tokens: NDArray[np.intp], starts: Sequence[int]
) -> WrittenJson:
    """The tokens that begin in each chunk, as a JSON list for each."""
    # Those before the first chunk are in it too.
    bounds = np.searchsorted(found.offsets[tokens, 0], starts[1:])
    groups = np.split(tokens, bounds) if starts else []

    def written(group: NDArray[np.intp]) -> Iterator[list[Any]]:
        return ([found.tokens[place], found.ids[place : place + 1]] for place in group)

    lists = [await dump_list(written(group)) async for group in cooperatively(groups)]
    return await dump_list(lists)
