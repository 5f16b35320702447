"""Long lists of an answer, which are written piece by piece."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import orjson
import pytest

from engine.platform.memory import resident_bytes
from service.http.json_response import dump_list


@pytest.mark.parametrize("items", [[], [0], [{"a": "b"}, [], None, "]"]])
def test_a_list_is_written_as_json_writes_it(items: list[Any]) -> None:
    assert orjson.dumps(asyncio.run(dump_list(items))) == orjson.dumps(items)


def test_a_list_of_many_short_items_takes_no_more_memory_than_its_bytes() -> None:
    """Each took four kilobytes: a million tokens needed four gigabytes, and several times as
    long."""
    held: list[int] = []

    def items() -> Iterator[int]:
        held.append(resident_bytes())
        yield from range(100_000)
        held.append(resident_bytes())

    written = asyncio.run(dump_list(items()))
    assert orjson.loads(orjson.dumps(written)) == list(range(100_000))
    assert held[1] - held[0] < 64 << 20
