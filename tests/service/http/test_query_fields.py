"""Fields of the query string that a route does not have: refused on our own routes, where a wrong
name would be ignored unseen."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

NEEDED: dict[str, dict[str, Any]] = {
    "/v1/attention/map": {"layer": 0, "head": 0},
    "/v1/documents": {"record": "?"},
}
"""Besides a text."""


@pytest.mark.parametrize(
    ("method", "path", "field", "has"),
    [
        ("GET", "/v1/benchmarks?limit=1", "limit", "none"),
        ("GET", "/v1/benchmarks/suites?all", "all", "none"),
        ("GET", "/v1/benchmarks/compare?a=1&b=2&c=3", "c", "a, b"),
        ("GET", "/v1/claims?onyl=lln", "onyl", "only"),
        ("GET", "/v1/search?query=tea", "query", "none"),
        ("GET", "/v1/search/document?file=a&page=2", "page", "file"),
        ("GET", "/v1/diagnostics/instruments?name=entropy", "name", "none"),
        ("POST", "/v1/diagnostics?layers=0", "layers", "none"),
        ("POST", "/v1/attention/map?format=png", "format", "none"),
        ("POST", "/v1/structure?scales=64", "scales", "none"),
        ("POST", "/v1/plan?model=documents", "model", "none"),
        ("POST", "/v1/tokenize?open=true", "open", "none"),
        ("PATCH", "/v1/documents?model=documents", "model", "none"),
    ],
)
def test_an_unknown_field_is_refused(
    http: httpx.Client, method: str, path: str, field: str, has: str
) -> None:
    body = None if method == "GET" else {"text": "a text", **NEEDED.get(path.split("?")[0], {})}
    answer = http.request(method, path, json=body)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (422, "unknown_field", field)
    assert (error["limit"], error["actual"]) == (has, field)
    assert error["message"] == f"{field} is not a field of this query, which has {has}"


@pytest.mark.parametrize(
    "path", ["/v1/models?x=1", "/v1/files?x=1", "/v1/batches?x=1", "/health/ready?x=1", "/info?x=1"]
)
def test_routes_that_other_vendors_have_too_take_fields_of_theirs(
    http: httpx.Client, path: str
) -> None:
    assert http.get(path).status_code == 200


@pytest.mark.parametrize("number", ["5_0", "%205", "5%20", "+5", "5.5", "5e0", "%EF%BC%95", ""])
@pytest.mark.parametrize("path", ["/v1/files?limit=", "/v1/batches?limit="])
def test_numbers_are_digits_alone(http: httpx.Client, path: str, number: str) -> None:
    """5_0 would be read as 50."""
    answer = http.get(path + number)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (422, "invalid_field", "limit")
    assert http.get(f"{path}5").status_code == http.get(f"{path}5.0").status_code == 200


def test_numbers_of_a_document_are_digits_alone(http: httpx.Client) -> None:
    def ask(number: str) -> httpx.Response:
        path = f"/v1/documents?chunking=fixed&tokens={number}"
        return http.post(path, content="a b c", headers={"content-type": "text/plain"})

    error = ask("5_0").json()["error"]
    assert (error["param"], error["actual"]) == ("tokens", "5_0")
    assert error["message"] == "tokens: input should be a valid integer, got '5_0'"
    assert ask("5").json()["chunks"] == ask("5.0").json()["chunks"]


def test_long_names_are_cut(http: httpx.Client) -> None:
    error = http.get(f"/v1/benchmarks?{'x' * 5000}=1").json()["error"]
    assert len(error["message"]) < 500
