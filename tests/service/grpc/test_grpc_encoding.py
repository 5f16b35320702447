"""Large answers over gRPC are encoded part by part, with the event loop free in between."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import numpy as np
import pytest
from google.protobuf.message import Message

from engine.types import Tokenization
from service.grpc.models import tokenization_parts
from service.grpc.parts import encoded
from service.grpc.requests import chunking
from service.pb.lln.v1 import embeddings_pb2
from service.pb.tei.v1 import tei_pb2


def tei_parts() -> Iterator[Message]:
    tokens = (tei_pb2.SimpleToken(id=at, text="a") for at in range(50_000))
    return (tei_pb2.EncodeResponse(tokens=[token]) for token in tokens)


def lln_parts() -> Iterator[Message]:
    places = np.arange(300_000, dtype=np.int32)
    found = Tokenization(ids=places, offsets=np.stack([places] * 2, 1), tokens=("a",) * 300_000)
    return tokenization_parts(found)


@pytest.mark.parametrize("parts", [tei_parts, lln_parts])
def test_parts_make_the_whole_message(parts: Callable[[], Iterator[Message]]) -> None:
    whole = next(iter(parts()))
    for part in list(parts())[1:]:
        whole.MergeFrom(part)
    turns, data = with_turns(encoded(parts()))
    assert type(whole).FromString(data) == whole
    assert turns > 5


def test_many_spans_are_read_with_the_event_loop_free_in_between() -> None:
    spans = [embeddings_pb2.CharacterSpan(start=at, end=at + 1) for at in range(65_536)]
    message = embeddings_pb2.Chunking(spans=embeddings_pb2.SpanChunks(spans=spans))
    turns, plan = with_turns(chunking(message))
    assert plan.spans == tuple((at, at + 1) for at in range(65_536))
    assert turns > 5


def with_turns(work: Coroutine[Any, Any, Any]) -> tuple[int, Any]:
    """How often another task ran meanwhile, and the result."""
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def run() -> Any:
        counting = asyncio.create_task(count())
        found = await work
        counting.cancel()
        return found

    found = asyncio.run(run())
    return turns, found
