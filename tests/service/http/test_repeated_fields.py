"""A field that its object has twice is refused: one of the two values would be lost unseen."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.body_budget import LARGE_BODY_BYTES
from service.errors import InvalidField
from service.http.json_request import JsonParser
from service.large_json import repeated_field
from service.repeated_fields import RepeatedName, each_once, may_repeat_fields


@pytest.mark.parametrize(
    ("body", "path"),
    [
        ('{"input": "a", "input": "b"}', "input"),
        ('{"input":"a","input":"a"}', "input"),
        ('{"a": {"b": [0, {"c": 1, "d": 2, "c": 3}]}}', "a.b[1].c"),
        ('[[], ["x", {"a" : 1, "a"\n:2}]]', "[1][1].a"),
        ('{"a": 1, "\\u0061": 2}', "a"),
        ('{"a\\\\": 1, "b": ":", "a\\\\": 2}', "a\\"),
        ('{"a\\"": 1, "a\\"": 2}', 'a"'),
        ('{"": 1, "": 2}', ""),
        ('{"text": "\\":\\":", "text": "{"}', "text"),
        ('{"text": "x : y", "n": 1, "n": 1}', "n"),
    ],
)
def test_the_second_one_is_found(body: str, path: str) -> None:
    found = repeated_field(body.encode(), orjson.loads(body))
    assert found is not None
    assert found.path == path
    assert body.encode()[found.position :].startswith(b'"')


@pytest.mark.parametrize(
    "body",
    [
        '{"a": {"a": 1}, "b": [{"a": 1}, {"a": 1}]}',
        '{"text": "\\"a\\": 1, \\"a\\": 2"}',
        '{"text": "\\\\\\"a\\": 1"}',
        '{"a": ":", "b": "\\":", "c": " :"}',
        '["a:", ":", "\\\\"]',
        "7",
    ],
)
def test_fields_of_different_objects_and_texts_are_no_repetition(body: str) -> None:
    assert repeated_field(body.encode(), orjson.loads(body)) is None


def test_texts_with_colons_and_quotes_are_not_searched() -> None:
    """The search takes longer than parsing."""
    texts = ['he said: "a" : "b": c', ":", " : a", '":', '\\":', ""]
    document = {"texts": [{"text": text} for text in texts], "all": texts, "n": 1}
    for indent in (None, 2):
        assert not may_repeat_fields(json.dumps(document, indent=indent).encode(), document)


NAMES = st.sampled_from(["a", "b", "\\", '"', ":", '":', "a\\", ""])
TEXTS = st.text(alphabet='a":\\ {}[],', max_size=8)


def objects(values: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    pairs = st.tuples(NAMES.map(json.dumps), st.sampled_from([":", " :", "\n: "]), values)
    return st.lists(pairs.map("".join), max_size=4).map(lambda all_: "{" + ",".join(all_) + "}")


BODIES = st.recursive(
    TEXTS.map(json.dumps) | st.just("0"),
    lambda values: (
        st.lists(values, max_size=4).map(lambda all_: f"[{','.join(all_)}]") | objects(values)
    ),
    max_leaves=20,
)


@given(BODIES)
def test_it_agrees_with_the_parser_of_python(body: str) -> None:
    try:
        json.loads(body, object_pairs_hook=each_once)
        is_repeated = False
    except RepeatedName:
        is_repeated = True
    assert (repeated_field(body.encode(), orjson.loads(body)) is not None) == is_repeated


@pytest.mark.parametrize("padding", [0, 100_000, LARGE_BODY_BYTES])
def test_a_body_of_any_size_is_refused(padding: int) -> None:
    body = b'{"text":"%b","edits":[{"start":1,"start":2}]}' % (b"x" * padding)

    async def scenario() -> InvalidField:
        parser = JsonParser()
        with pytest.raises(InvalidField) as refusal:
            await parser.parse(body)
        parser.close()
        return refusal.value

    error = asyncio.run(scenario())
    assert (error.code, error.param) == ("repeated_field", "edits[0].start")
    position = body.rindex(b'"start"')
    assert error.actual == position
    assert f"again at byte {position}" in error.message


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/embeddings", '{"input": "a", "input": "b"}', "input"),
        ("/v1/rerank", '{"query": "a", "documents": [{"text": "a", "text": "b"}]}', None),
        ("/api/embed", '{"model": "default", "input": "a", "model": "b"}', "model"),
        ("/embed", '{"inputs": "a", "inputs": "b"}', "inputs"),
    ],
)
def test_a_repeated_field_is_refused_on_every_route(
    http: httpx.Client, path: str, body: str, param: str | None
) -> None:
    headers = {"content-type": "application/json"}
    answer = http.post(path, content=body, headers=headers)
    assert answer.status_code == 422, answer.text
    document: dict[str, Any] = answer.json()
    error = document if isinstance(document["error"], str) else document["error"]
    assert (error["code"], error["param"]) == ("repeated_field", param or "documents[0].text")
