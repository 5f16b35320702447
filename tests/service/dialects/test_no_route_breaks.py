"""Every route of every dialect with unknown fields, wrong types and too large values: each is
answered or refused by name, and none breaks."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from fastapi.routing import APIRoute

from service.http.dialects.table import DIALECTS
from tests.service.conftest import RunningServer

_EMBED = {"input": ["a"]}
_RANK = {"query": "a", "documents": ["a"]}

VALID: dict[str, dict[str, Any]] = {
    "voyage /v1/contextualizedembeddings": {"inputs": [["a", "b"]]},
    "voyage /v1/embeddings": _EMBED | {"input_type": "query"},
    "voyage /v1/rerank": _RANK | {"truncation": True},
    "jina /v1/embeddings": _EMBED | {"task": "retrieval.query"},
    "jina /v1/segment": {"content": "a", "return_chunks": True, "return_tokens": True},
    "infinity /embeddings": _EMBED,
    "infinity /v1/embeddings": _EMBED | {"modality": "text"},
    "infinity /rerank": _RANK | {"raw_scores": True},
    "vllm /v1/embeddings": _EMBED | {"add_special_tokens": True},
    "vllm /pooling": _EMBED,
    "vllm /score": {"text_1": "a", "text_2": ["b"]},
    "vllm /v1/score": {"data_1": "a", "data_2": ["b"]},
    "vllm /tokenize": {"prompt": "a"},
    "vllm /detokenize": {"tokens": [101]},
    "vllm /rerank": _RANK,
    "vllm /v1/rerank": _RANK | {"truncate_prompt_tokens": 5},
    "cohere /v2/embed": {"texts": ["a"]},
    "cohere /v1/embed": {"texts": ["a"]},
    "cohere /v2/rerank": _RANK,
    "cohere /v1/rerank": _RANK | {"rank_fields": ["text"]},
    "ollama /api/embed": {"model": "default", "input": "a"},
    "ollama /api/embeddings": {"model": "default", "prompt": "a"},
    "ollama /api/show": {"model": "default"},
    "sagemaker /invocations": {"input": "a"},
}
WITHOUT_BODY = {
    *("/api/generate", "/api/chat", "/api/pull", "/api/push", "/api/create", "/api/copy"),
}
WRONG: tuple[Any, ...] = (
    *(None, True, -1, 2**63, 2**64 - 1, 1e308, 0.5, "", "x\u0000"),
    *([], {}, [[]], [None], [[[["a"]]]], [-1], {"a": {"b": [1]}}, ["a"] * 3000),
)


@pytest.fixture
def api(small_model: RunningServer) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=small_model.http_url, timeout=120) as client:
        yield client


def endpoints() -> Iterator[tuple[str, str, Callable[..., Any]]]:
    for dialect in DIALECTS:
        for claim in dialect.claims:
            yield f"{dialect.name} {claim.path}", claim.path, claim.endpoint
        for route in dialect.router.routes:
            assert isinstance(route, APIRoute)
            if "POST" in (route.methods or ()) and route.path not in WITHOUT_BODY:
                yield f"{dialect.name} {route.path}", route.path, route.endpoint


CASES = {name: (path, endpoint) for name, path, endpoint in endpoints()}


def fields_of(endpoint: Callable[..., Any]) -> list[str]:
    body = inspect.signature(endpoint, eval_str=True).parameters["body"].annotation
    return list(getattr(body, "model_fields", {}))


def test_every_route_is_walked() -> None:
    assert set(CASES) == set(VALID)


@pytest.mark.parametrize("name", CASES)
def test_route(api: httpx.Client, name: str) -> None:
    path, endpoint = CASES[name]
    valid = VALID[name]
    answer = api.post(path, json=valid)
    assert answer.status_code == 200, answer.text
    refused = api.post(path, json=valid | {"colour": 1})
    assert refused.status_code == 422, refused.text
    assert "colour" in refused.text
    for field in fields_of(endpoint):
        for value in WRONG:
            found = api.post(path, json=valid | {field: value})
            assert found.status_code < 500, f"{field}={str(value)[:50]}: {found.text[:300]}"
    for body in (b"", b"null", b"[]", b"7", b'"a"', b"{", b"\xff", b'{"input": "\\ud800"}'):
        found = api.post(path, content=body, headers={"content-type": "application/json"})
        assert 400 <= found.status_code < 500, found.text[:300]
    assert api.get(path).status_code == 405


@pytest.mark.parametrize("path", sorted(WITHOUT_BODY))
def test_route_that_only_refuses(api: httpx.Client, path: str) -> None:
    for body in (b"", b"{}", b"\xff"):
        answer = api.post(path, content=body)
        assert answer.status_code == 501
        assert isinstance(answer.json()["error"], str)
