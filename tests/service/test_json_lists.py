"""Long lists of an answer, which are written piece by piece."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import numpy as np
import orjson
import pytest
from starlette.responses import Response

from engine.platform.memory import resident_bytes
from service.http.json_response import (
    AnswerInPieces,
    dump_array,
    dump_floats,
    dump_list,
    json_response,
    whole_body,
)


@pytest.mark.parametrize("items", [[], [0], [{"a": "b"}, [], None, "]"]])
def test_a_list_is_written_as_json_writes_it(items: list[Any]) -> None:
    assert whole_body(json_response(asyncio.run(dump_list(items)))) == orjson.dumps(items)


def test_lists_are_written_in_their_places() -> None:
    async def nested() -> Any:
        inner = await dump_list(["\0", "b" * 40_000])
        return {"a": await dump_list([{"c": inner}, [inner, 1]]), "d": [await dump_list([])]}

    inner = ["\0", "b" * 40_000]
    written = whole_body(json_response(asyncio.run(nested())))
    assert written == orjson.dumps({"a": [{"c": inner}, [inner, 1]], "d": [[]]})


def test_what_is_no_json_is_refused() -> None:
    with pytest.raises(TypeError, match="not JSON serializable"):
        json_response({"a": object()})


def test_a_large_answer_is_never_in_one_piece() -> None:
    """A copy of hundreds of megabytes would hold up the event loop."""
    rows = np.random.default_rng(0).random((1_000, 384), dtype=np.float32)

    async def answer() -> Response:
        parts = [await dump_list(rows), await dump_floats(rows, "base64")]
        return json_response({"data": await dump_list(parts)})

    response = asyncio.run(answer())
    assert isinstance(response, AnswerInPieces)
    assert max(map(len, response.pieces)) <= 65_536
    assert int(response.headers["content-length"]) == sum(map(len, response.pieces))
    assert response.headers["content-type"] == "application/json"


@pytest.mark.parametrize("shape", [(0,), (3,), (9_000,), (0, 2), (5_000, 2), (3, 5_000)])
def test_an_array_is_written_as_json_writes_it(shape: tuple[int, ...]) -> None:
    values = np.arange(np.prod(shape), dtype=np.int32).reshape(shape)
    written = whole_body(json_response(asyncio.run(dump_array(values))))
    assert written == orjson.dumps(values.tolist())


def test_a_list_of_many_short_items_takes_no_more_memory_than_its_bytes() -> None:
    """Each took four kilobytes: a million tokens needed four gigabytes, and several times as
    long."""
    held: list[int] = []

    def items() -> Iterator[int]:
        held.append(resident_bytes())
        yield from range(100_000)
        held.append(resident_bytes())

    written = asyncio.run(dump_list(items()))
    assert orjson.loads(whole_body(json_response(written))) == list(range(100_000))
    assert held[1] - held[0] < 64 << 20
