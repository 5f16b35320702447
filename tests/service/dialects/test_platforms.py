"""infinity's routes without a prefix, and SageMaker's, which take the bodies of all others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import numpy as np
import pytest

from tests.service.dialects.conftest import as_array


def test_infinity(api: httpx.Client, plain: Callable[..., np.ndarray]) -> None:
    for body in ({"input": ["a"], "modality": "text"}, {"input": ["a"]}):
        answer = api.post("/embeddings", json=body).raise_for_status().json()
        assert np.array_equal(as_array([answer["data"][0]["embedding"]]), plain(["a"]))
    short = api.post("/embeddings", json={"input": "a", "output_dimension": 8}).json()
    assert len(short["data"][0]["embedding"]) == 8
    assert api.get("/models").json() == api.get("/v1/models").json()
    refused = api.post("/v1/embeddings", json={"input": "a", "modality": "image"})
    assert refused.json()["error"]["param"] == "modality"


def test_two_names_of_one_option(api: httpx.Client) -> None:
    both = {"input": "a", "output_dimension": 8, "dimensions": 8}
    assert len(api.post("/embeddings", json=both).json()["data"][0]["embedding"]) == 8
    refused = api.post("/embeddings", json={**both, "dimensions": 9})
    error = refused.json()["error"]
    assert (refused.status_code, error["code"]) == (400, "contradictory_fields")
    assert (error["param"], error["actual"]) == ("dimensions", "9")


def test_ping_needs_no_key(url: str) -> None:
    assert httpx.get(f"{url}/ping").status_code == 200
    assert httpx.post(f"{url}/invocations", json={"input": "a"}).status_code == 401


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/embeddings", {"input": ["a"]}),
        ("/v1/embeddings", {"input": ["a"], "truncate_prompt_tokens": 3, "dimensions": 8}),
        ("/v1/embeddings", {"input": ["a"], "output_dimension": 8}),
        ("/v1/embeddings", {"input": ["a", "b"], "late_chunking": True}),
        ("/v1/contextualizedembeddings", {"inputs": [["a", "b"]]}),
        ("/embed", {"inputs": "a"}),
        ("/v2/embed", {"texts": ["a"]}),
        ("/pooling", {"input": "a", "task": "token_embed"}),
        ("/score", {"text_1": "a", "text_2": "b"}),
        ("/tokenize", {"prompt": "a"}),
    ],
)
def test_invocations(api: httpx.Client, path: str, body: dict[str, Any]) -> None:
    found, own = (api.post(one, json=body).raise_for_status() for one in ("/invocations", path))
    changing = ("id", "created")
    answers = [answer.json() for answer in (found, own)]
    for answer in answers:
        if isinstance(answer, dict):
            for name in changing:
                answer.pop(name, None)
    assert answers[0] == answers[1]


def test_an_invocation_that_asks_for_nothing(api: httpx.Client) -> None:
    answer = api.post("/invocations", json={"colour": 1})
    assert answer.status_code == 400
    assert "input" in answer.json()["error"]["limit"]
