"""Texts beyond the model's limit: vendors cut them by default, and here the answer says so."""

from __future__ import annotations

from typing import Any

import httpx
import numpy as np
import pytest

from engine.types import Accounting
from service.http.dialects.dropped import dropped_headers
from tests.service.dialects.conftest import as_array

KEPT = " ".join("abcdefghijklmnopqrstuvwxyz" * 3)[:123]  # 62 tokens and two special ones
TEXTS = ["a b", f"{KEPT} o p"]

_EMBED = ("/v1/embeddings", "input", ("data", 1, "embedding"), ("usage",))
REQUESTS: dict[str, tuple[tuple[str, str, tuple[Any, ...], tuple[str, ...]], dict[str, Any]]] = {
    "voyage": (_EMBED, {"truncation": True}),
    "voyage, by default": (_EMBED, {"input_type": "document"}),
    "jina": (_EMBED, {"truncate": True}),
    "vllm": (_EMBED, {"truncate_prompt_tokens": -1}),
    "cohere": (
        ("/v2/embed", "texts", ("embeddings", "float", 1), ("meta", "billed_units")),
        {},
    ),
    "ollama": (("/api/embed", "input", ("embeddings", 1), ()), {}),
}
REFUSED: dict[str, dict[str, Any]] = {
    "voyage": {"truncation": False},
    "jina": {"truncate": False},
    "cohere": {"truncate": "NONE"},
    "ollama": {"truncate": False},
}


def at(document: Any, path: tuple[Any, ...]) -> Any:
    for step in path:
        document = document[step]
    return document


@pytest.mark.parametrize("vendor", REQUESTS)
def test_what_was_dropped_is_told(api: httpx.Client, vendor: str) -> None:
    (path, field, vector, usage), fields = REQUESTS[vendor]
    body = {"model": "short", **fields}
    answer = api.post(path, json=body | {field: TEXTS}).raise_for_status()
    assert answer.headers["x-lln-dropped-tokens"] == "1:2"
    assert at(answer.json(), usage)["dropped_tokens"] == 2
    kept = api.post(path, json=body | {field: ["a b", KEPT]}).raise_for_status()
    assert "x-lln-dropped-tokens" not in kept.headers
    assert "dropped_tokens" not in kept.text
    cut, short = (as_array(at(one.json(), vector)) for one in (answer, kept))
    assert np.array_equal(cut, short)


def test_a_header_that_clients_and_proxies_read() -> None:
    cut = Accounting(tokens=1_048_576, tokens_embedded=8)
    header = dropped_headers([cut] * 2_048)["x-lln-dropped-tokens"]
    assert header.startswith("0:1048568, 1:1048568, ")
    assert header.endswith("199:1048568, ...")
    assert len(header) < 4_096


@pytest.mark.parametrize("vendor", REFUSED)
def test_it_is_refused_where_that_is_asked_for(api: httpx.Client, vendor: str) -> None:
    (path, field, _, _), _ = REQUESTS[vendor]
    body: dict[str, Any] = {"model": "short", field: TEXTS, **REFUSED[vendor]}
    answer = api.post(path, json=body)
    assert answer.status_code == 400
    error = answer.json() if vendor == "ollama" else answer.json()["error"]
    assert (error["code"], error["param"]) == ("text_too_long", f"{field}[1]")
    assert (error["limit"], error["actual"]) == (64, 66)


def test_a_document_is_never_cut(api: httpx.Client) -> None:
    chunks = ["a b ", KEPT]
    bodies: dict[str, dict[str, Any]] = {
        "/v1/contextualizedembeddings": {"inputs": [chunks]},
        "/v1/embeddings": {"input": chunks, "late_chunking": True},
    }
    for path, fields in bodies.items():
        answer = api.post(path, json={"model": "short", **fields})
        assert answer.status_code == 400
        assert answer.json()["error"]["code"] == "text_too_long"
        assert answer.json()["detail"] == answer.json()["error"]["message"]
