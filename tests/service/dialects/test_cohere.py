"""Cohere's client, as released, in both versions of its API."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import numpy as np
import pytest

from tests.service.dialects.conftest import KEY, RunApart, as_array

TEXTS = ["a text", "another, somewhat longer"]


@pytest.fixture
def cohere() -> Any:
    return pytest.importorskip("cohere", reason="comes with the extra dialects")


@pytest.fixture
def connect(cohere: Any, url: str) -> Iterator[Callable[..., Any]]:
    """Makes clients with our address and key. They cannot be closed but through what they hold."""
    made: list[Any] = []

    def make(kind: str, key: str = KEY) -> Any:
        made.append(getattr(cohere, kind)(api_key=key, base_url=url))
        return made[-1]

    yield make
    for client in made:
        client._client_wrapper.httpx_client.httpx_client.close()


def test_version_2(
    connect: Callable[..., Any], api: httpx.Client, plain: Callable[..., np.ndarray]
) -> None:
    client = connect("ClientV2")
    kinds = ["float", "int8", "uint8", "binary", "ubinary", "base64"]
    answer = client.embed(
        model="embed-v4.0", texts=TEXTS, input_type="search_document", embedding_types=kinds
    )
    found = answer.embeddings
    expected = plain(TEXTS)
    assert np.array_equal(as_array(found.float_), expected)
    for kind in ("int8", "uint8", "binary", "ubinary"):
        assert np.array_equal(as_array(getattr(found, kind)), plain(TEXTS, output_dtype=kind))
    raw = b"".join(base64.b64decode(text) for text in found.base64)
    assert np.array_equal(np.frombuffer(raw, "<f4").reshape(expected.shape), expected)
    tokens = sum(api.post("/v1/tokenize", json={"text": text}).json()["count"] for text in TEXTS)
    assert answer.meta.billed_units.input_tokens == tokens
    assert answer.texts == TEXTS


def test_fewer_dimensions_and_tokens(
    connect: Callable[..., Any], api: httpx.Client, plain: Callable[..., np.ndarray]
) -> None:
    client = connect("ClientV2")
    short = client.embed(
        model="embed-v4.0",
        texts=["one two three four five"],
        input_type="clustering",
        embedding_types=["float"],
        output_dimension=32,
        max_tokens=5,
    )
    expected = plain(["one two three"], dimensions=32)
    assert np.array_equal(as_array(short.embeddings.float_), expected)
    body = {"texts": ["x", "one two three four five"], "max_tokens": 5}
    answer = api.post("/v2/embed", json=body)
    assert answer.headers["x-lln-dropped-tokens"] == "1:2"
    assert answer.json()["meta"]["billed_units"] == {"input_tokens": 8, "dropped_tokens": 2}
    whole = api.post("/v2/embed", json=body | {"truncate": "NONE"})
    assert whole.json()["error"]["param"] == "texts[1]"
    start = api.post("/v2/embed", json=body | {"truncate": "START"}).json()
    assert np.array_equal(as_array(start["embeddings"]["float"])[1:], plain(["three four five"]))


def test_mixed_inputs(
    connect: Callable[..., Any], api: httpx.Client, plain: Callable[..., np.ndarray]
) -> None:
    client = connect("ClientV2")
    parts = [{"type": "text", "text": "a text"}]
    answer = client.embed(
        model="embed-v4.0",
        inputs=[{"content": parts}],
        input_type="search_query",
        embedding_types=["float"],
    )
    assert np.array_equal(as_array(answer.embeddings.float_), plain(["a text"]))
    picture = [{"type": "image_url", "image_url": {"url": "data:image/png;base64,"}}]
    refused = api.post("/v2/embed", json={"inputs": [{"content": picture}]})
    assert refused.json()["error"]["param"] == "inputs[0].content[0]"


def test_version_1(connect: Callable[..., Any], plain: Callable[..., np.ndarray]) -> None:
    client = connect("Client")
    answer = client.embed(model="embed-v4.0", texts=TEXTS, input_type="search_query")
    assert answer.response_type == "embeddings_floats"
    assert np.array_equal(as_array(answer.embeddings), plain(TEXTS))


@pytest.mark.parametrize("path", ["/v1/embed", "/v2/embed"])
@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "texts"),
        ({"texts": []}, "texts"),
        ({"texts": ["a", ""]}, "texts[1]"),
        ({"texts": ["a"], "images": ["data:"]}, "images"),
        ({"texts": ["a"], "input_type": "image"}, "input_type"),
        ({"texts": ["a"], "embedding_types": []}, "embedding_types"),
        ({"texts": ["a"], "truncate": "MIDDLE"}, "truncate"),
        ({"texts": ["a"], "colour": 1}, "colour"),
    ],
)
def test_what_is_refused(api: httpx.Client, path: str, body: dict[str, Any], param: str) -> None:
    answer = api.post(path, json=body)
    assert 400 <= answer.status_code < 500
    assert answer.json()["error"]["param"] == param
    assert answer.json()["message"] == answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("part", "param", "message"),
    [
        ({"type": "text"}, ".text", "inputs[1].content[0].text is required"),
        ({"type": "text", "text": "a", "image_url": {"url": "data:"}}, ".image_url", "text alone"),
        ({"type": "image_url", "image_url": {"url": "data:"}}, "", "text alone"),
    ],
)
def test_parts_that_are_no_text(
    api: httpx.Client, part: dict[str, Any], param: str, message: str
) -> None:
    inputs = [{"content": [{"type": "text", "text": "a"}]}, {"content": [part]}]
    error = api.post("/v2/embed", json={"inputs": inputs}).json()["error"]
    assert error["param"] == f"inputs[1].content[0]{param}"
    assert message in error["message"]


@pytest.mark.parametrize("most", [1, 2])
def test_a_limit_that_leaves_no_room_names_its_field(api: httpx.Client, most: int) -> None:
    answer = api.post("/v2/embed", json={"texts": ["a text"], "max_tokens": most})
    error = answer.json()["error"]
    assert (error["code"], error["param"]) == ("limit_too_small", "max_tokens")
    assert (error["limit"], error["actual"]) == (3, most)


def test_errors_reach_the_user_of_the_client(cohere: Any, connect: Callable[..., Any]) -> None:
    client = connect("ClientV2")
    with pytest.raises(cohere.BadRequestError, match="output_dimension must be 1 to 384"):
        client.embed(
            model="embed-v4.0", texts=["a"], input_type="clustering", output_dimension=1536
        )
    stranger = connect("ClientV2", "of-somebody-unknown")
    with pytest.raises(cohere.UnauthorizedError, match="API key is not valid"):
        stranger.embed(model="embed-v4.0", texts=["a"], input_type="clustering")


def test_langchain(run_apart: RunApart, url: str, plain: Callable[..., np.ndarray]) -> None:
    """It needs an older client of Cohere's."""
    program = f"""
import json
from langchain_cohere import CohereEmbeddings
embedder = CohereEmbeddings(cohere_api_key={KEY!r}, model="embed-v4.0", base_url={url!r})
print(json.dumps([embedder.embed_documents({TEXTS!r}), embedder.embed_query({TEXTS[0]!r})]))
"""
    documents, query = run_apart("langchain-cohere", program)
    assert np.array_equal(as_array(documents), plain(TEXTS))
    assert np.array_equal(as_array([query]), plain(TEXTS[:1]))
