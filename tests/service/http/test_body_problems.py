"""What a body's problems are called, and that a caller cannot make the server describe millions."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from pydantic import ValidationError

from engine.errors import InvalidInput
from service.http.schemas.fields import MAX_FIELDS, Body

MANY = 5_000

importlib.import_module("service.app")  # defines the bodies of every route


def bodies(kind: type[Body] = Body) -> Iterator[type[Body]]:
    for one in kind.__subclasses__():
        yield one
        yield from bodies(one)


def num_problems(kind: type[Body], body: dict[str, Any]) -> int:
    try:
        kind.model_validate(body)
    except ValidationError as error:
        return error.error_count()
    except InvalidInput:
        return 1
    raise AssertionError(f"{kind} takes {list(body)}")


def test_a_list_is_read_no_further_than_to_its_first_wrong_value() -> None:
    kinds = list(bodies())
    assert len(kinds) > 30
    wrong_values: list[Any] = [0.5, [], {"?": 0}]
    for kind in kinds:
        for name in kind.model_fields:
            for wrong in wrong_values:
                found = num_problems(kind, {name: [wrong] * MANY, "?": 0})
                assert found < 50, (kind, name, wrong)


def test_an_object_of_many_fields_is_not_read() -> None:
    many = {str(number): 0 for number in range(MANY)}
    for kind in bodies():
        assert num_problems(kind, many) == 1
        for name in kind.model_fields:
            assert num_problems(kind, {name: many, "?": 0}) < 50, (kind, name)


@pytest.mark.parametrize(
    ("method", "path", "body", "code"),
    [
        (
            "POST",
            "/v1/documents",
            {"text": "a", "chunking": {"type": "spans", "spans": [0] * 65_537}},
            "too_many_chunks",
        ),
        ("PATCH", "/v1/documents", {"text": "a", "edits": [0] * 65_537}, "too_many_edits"),
        ("POST", "/v1/plan", {"text": "a", "edits": [0] * 65_537}, "too_many_edits"),
        ("POST", "/v2/embed", {"inputs": [0] * 16_385}, "too_many_inputs"),
    ],
)
def test_too_many_objects_are_counted_and_not_read(
    http: httpx.Client, method: str, path: str, body: Any, code: str
) -> None:
    answer = http.request(method, path, json=body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, code), answer.text


def refusal(http: httpx.Client, path: str, body: Any) -> dict[str, Any]:
    answer = http.post(path, json=body)
    assert answer.status_code == 422, answer.text
    error: dict[str, Any] = answer.json()["error"]
    return error


def test_a_body_of_many_fields_is_refused(http: httpx.Client) -> None:
    error = refusal(http, "/v1/tokenize", {str(number): 0 for number in range(MANY)})
    assert (error["code"], error["limit"]) == ("invalid_field", MAX_FIELDS)
    assert str(MAX_FIELDS) in error["message"]


@pytest.mark.parametrize(
    ("document", "message", "param"),
    [
        (5, "documents[1]: input should be a valid string, got 5", "documents[1]"),
        ({"text": 5}, "documents[1].text: input should be a valid string", "documents[1].text"),
        ({"title": "a"}, "documents[1].text is required", "documents[1].text"),
        (
            {"text": "a", "title": "b"},
            "documents[1].title is not a known field",
            "documents[1].title",
        ),
    ],
)
def test_a_document_that_cannot_be_ranked_is_named_as_it_was_sent(
    http: httpx.Client, document: Any, message: str, param: str
) -> None:
    error = refusal(http, "/v1/rerank", {"query": "a", "documents": ["a", document]})
    assert error["param"] == param
    assert error["message"].startswith(message)


@pytest.mark.parametrize(("inputs", "param"), [(5, "inputs"), (["a", 5], "inputs[1]")])
def test_a_text_in_a_list_or_alone_is_named_as_it_was_sent(
    http: httpx.Client, inputs: Any, param: str
) -> None:
    assert refusal(http, "/tokenize", {"inputs": inputs})["param"] == param
