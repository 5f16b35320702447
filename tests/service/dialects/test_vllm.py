"""vLLM's fields and routes, which have no client but OpenAI's and plain HTTP."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any

import httpx
import numpy as np
import pytest
import torch

from service.version import version_of
from tests.service.dialects.conftest import as_array

TEXTS = ["a text", "another, somewhat longer"]
FORMS = {"float32": np.float32, "float16": np.float16, "bfloat16": np.uint16}


def post(api: httpx.Client, path: str = "/v1/embeddings", **body: Any) -> httpx.Response:
    return api.post(path, json={"model": "served", **body})


def rounded(vectors: np.ndarray, dtype: str) -> np.ndarray:
    """By torch, whose rounding vLLM's clients have."""
    return torch.from_numpy(vectors.copy()).to(getattr(torch, dtype)).float().numpy()


def as_floats(data: bytes, dtype: str, order: Any) -> np.ndarray:
    values = np.frombuffer(data, np.dtype(FORMS[dtype]).newbyteorder(order))
    if dtype == "bfloat16":
        return (values.astype(np.uint32) << 16).view(np.float32)
    return values.astype(np.float32)


@pytest.mark.parametrize("dtype", FORMS)
@pytest.mark.parametrize(("endianness", "order"), [("native", "="), ("little", "<"), ("big", ">")])
def test_bytes(
    api: httpx.Client, plain: Callable[..., np.ndarray], dtype: str, endianness: str, order: str
) -> None:
    form = {"embed_dtype": dtype, "endianness": endianness}
    answer = post(api, input=TEXTS, encoding_format="bytes", **form).raise_for_status()
    assert answer.headers["content-type"] == "application/octet-stream"
    head = json.loads(answer.headers["metadata"])
    expected = rounded(plain(TEXTS), dtype)
    for place, vector in zip(head["data"], expected, strict=True):
        assert place["shape"] == [384]
        piece = answer.content[place["start"] : place["end"]]
        assert np.array_equal(as_floats(piece, dtype, order), vector)
    assert head["usage"]["prompt_tokens"] > 0
    bare = post(api, input=TEXTS, encoding_format="bytes_only", **form)
    assert bare.content == answer.content
    assert "metadata" not in bare.headers
    written = post(api, input=TEXTS, encoding_format="base64", **form).json()["data"]
    pieces = [base64.b64decode(item["embedding"]) for item in written]
    assert b"".join(pieces) == answer.content


def test_places_that_no_header_holds(api: httpx.Client) -> None:
    """Clients read at most 64 KiB of a header: they would not see the answer at all."""
    most = post(api, input=["a"] * 500, encoding_format="bytes").raise_for_status()
    assert len(json.loads(most.headers["metadata"])["data"]) == 500
    assert len(most.headers["metadata"]) < 65_536
    error = post(api, input=["a"] * 501, encoding_format="bytes").json()["error"]
    assert (error["param"], error["limit"], error["actual"]) == ("encoding_format", 500, 501)
    post(api, input=["a"] * 501, encoding_format="bytes_only").raise_for_status()


@pytest.mark.parametrize(
    ("fields", "kept"),
    [
        ({"truncate_prompt_tokens": 4}, "one two"),
        ({"truncate_prompt_tokens": 4, "truncation_side": "left"}, "four five"),
        ({"truncate_prompt_tokens": -1}, "one two three four five"),
        ({"truncate_prompt_tokens": None}, "one two three four five"),
    ],
)
def test_truncation(
    api: httpx.Client, plain: Callable[..., np.ndarray], fields: dict[str, Any], kept: str
) -> None:
    answer = post(api, input="one two three four five", **fields).raise_for_status()
    assert np.array_equal(as_array([answer.json()["data"][0]["embedding"]]), plain([kept]))
    dropped = answer.json()["usage"].get("dropped_tokens", 0)
    assert dropped == 5 - len(kept.split())
    assert ("x-lln-dropped-tokens" in answer.headers) == (dropped > 0)


def test_states_of_tokens(api: httpx.Client, plain: Callable[..., np.ndarray]) -> None:
    own = api.post("/embed_all", json={"inputs": TEXTS}).json()
    answer = post(api, "/pooling", input=TEXTS).raise_for_status().json()
    assert [item["data"] for item in answer["data"]] == own
    binary = post(api, "/pooling", input=TEXTS, encoding_format="bytes")
    places = json.loads(binary.headers["metadata"])["data"]
    for place, states in zip(places, own, strict=True):
        assert place["shape"] == [len(states), 384]
        piece = binary.content[place["start"] : place["end"]]
        assert np.array_equal(np.frombuffer(piece, np.float32), as_array(states).ravel())
    whole = post(api, "/pooling", input=TEXTS, task="embed").json()
    assert np.array_equal(as_array([item["data"] for item in whole["data"]]), plain(TEXTS))


def test_scores(api: httpx.Client, plain: Callable[..., np.ndarray]) -> None:
    vectors = plain(TEXTS)
    cosines = vectors[:1] @ vectors.T
    for names in (("text_1", "text_2"), ("data_1", "data_2"), ("queries", "documents")):
        body = dict(zip(names, (TEXTS[0], TEXTS), strict=True))
        answer = post(api, "/score", **body).raise_for_status().json()
        found = [item["score"] for item in answer["data"]]
        assert np.allclose(found, cosines[0], atol=1e-6)
    pairs = post(api, "/v1/score", text_1=TEXTS, text_2=TEXTS).json()["data"]
    assert [round(item["score"], 5) for item in pairs] == [1.0, 1.0]
    plain_pairs = post(api, "/score", text_1=TEXTS, text_2=TEXTS, use_activation=False).json()
    assert [item["score"] for item in plain_pairs["data"]] == [item["score"] for item in pairs]


def test_tokens_of_a_prompt(api: httpx.Client) -> None:
    own = api.post("/v1/tokenize", json={"text": TEXTS[1]}).json()
    answer = post(api, "/tokenize", prompt=TEXTS[1], return_token_strs=True).json()
    assert answer["tokens"] == own["ids"]
    assert answer["token_strs"] == own["tokens"]
    assert answer["count"] == own["count"]
    bare = post(api, "/tokenize", prompt=TEXTS[1], add_special_tokens=False).json()
    assert bare["tokens"] == own["ids"][1:-1]
    assert bare["token_strs"] is None
    for ids in (answer["tokens"], bare["tokens"]):
        text = post(api, "/detokenize", tokens=ids).raise_for_status().json()
        own_text = api.post("/decode", json={"ids": ids, "skip_special_tokens": False}).json()
        assert [text["prompt"]] == own_text
    assert text == {"prompt": TEXTS[1]}
    assert api.get("/version").json() == {"version": version_of("lln")}


def test_tokens_of_a_large_body(api: httpx.Client) -> None:
    word = api.post("/v1/tokenize", json={"text": "otter"}).json()["ids"][1:-1]
    answer = post(api, "/detokenize", tokens=word * 200_000).raise_for_status().json()
    some = post(api, "/detokenize", tokens=word * 2).raise_for_status().json()["prompt"]
    assert answer["prompt"].startswith(some)
    assert len(answer["prompt"]) > 1_000_000


@pytest.mark.parametrize(("tokens", "given"), [(None, "null"), ("101", "'101'"), ({}, "an empty")])
def test_what_is_no_list_of_tokens_is_told_in_words_of_json(
    api: httpx.Client, tokens: Any, given: str
) -> None:
    message = post(api, "/detokenize", tokens=tokens).json()["error"]["message"]
    assert f"tokens must be a list of token ids, got {given}" in message


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/embeddings", {"input": "a", "add_special_tokens": False}, "add_special_tokens"),
        ("/v1/embeddings", {"input": "a", "embed_dtype": "fp8_e4m3"}, "embed_dtype"),
        ("/v1/embeddings", {"input": "a", "padding": "max_length"}, "padding"),
        ("/v1/embeddings", {"input": "a", "priority": 1, "dimensions": -1}, "dimensions"),
        ("/v1/embeddings", {"input": "a", "mm_processor_kwargs": {"x": 1}}, "mm_processor_kwargs"),
        ("/v1/embeddings", {"input": "a", "truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
        (
            "/v1/embeddings",
            {"input": "a", "truncate_prompt_tokens": 2_000_000},
            "truncate_prompt_tokens",
        ),
        ("/pooling", {"input": "a", "task": "classify"}, "task"),
        ("/pooling", {"messages": []}, "input"),
        ("/score", {"text_1": "a"}, "text_1"),
        ("/score", {"text_1": ["a", "b"], "text_2": ["a"]}, "text_1"),
        ("/score", {"text_1": "a", "text_2": ["b", ""]}, "text_2[1]"),
        ("/score", {"text_1": "", "text_2": "b"}, "text_1"),
        ("/score", {"text_1": "a", "text_2": "b", "data_2": "c"}, "data_2"),
        ("/score", {"queries": "a", "documents": "b", "items": "c"}, "items"),
        ("/score", {"text_1": "a", "text_2": []}, "text_2"),
        ("/score", {"text_1": "a", "text_2": ["b"] * 2_048}, "text_2"),
        ("/tokenize", {"prompt": ""}, "prompt"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": [101, 999_999]}, "tokens"),
        ("/detokenize", {"tokens": [-1]}, "tokens"),
        ("/detokenize", {"tokens": "101"}, "tokens"),
        ("/detokenize", {"tokens": 101}, "tokens"),
        ("/detokenize", {"tokens": ["101"]}, "tokens"),
        ("/detokenize", {"tokens": []}, "tokens"),
        ("/detokenize", {"tokens": [101, [102]]}, "tokens"),
        ("/v1/embeddings", {"input": "a", "embed_dtype": [7] * 500_000}, "embed_dtype"),
        ("/v1/embeddings", {"input": "a", "encoding_format": [7] * 500_000}, "encoding_format"),
        (
            "/v1/rerank",
            {"query": "a", "documents": ["a"], "max_tokens_per_query": [7] * 500_000},
            "max_tokens_per_query",
        ),
    ],
)
def test_what_is_refused(api: httpx.Client, path: str, body: dict[str, Any], param: str) -> None:
    answer = post(api, path, **body)
    assert 400 <= answer.status_code < 500
    assert answer.json()["error"]["param"] == param
