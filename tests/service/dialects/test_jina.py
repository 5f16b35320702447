"""Jina's fields, and its embedders in LlamaIndex and Haystack, as released."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import httpx
import numpy as np
import orjson
import pytest

from engine.types import Tokenization
from service.http.dialects.jina_segment import _by_chunk
from service.http.json_response import json_response, whole_body
from tests.service.dialects.conftest import CHUNKS, KEY, as_array

TEXTS = ["a text", "another, somewhat longer"]


def post(api: httpx.Client, **body: Any) -> httpx.Response:
    return api.post("/v1/embeddings", json={"model": "jina-embeddings-v3", **body})


def vectors(answer: httpx.Response) -> list[Any]:
    return [item["embedding"] for item in answer.raise_for_status().json()["data"]]


def test_late_chunking(api: httpx.Client, late_chunks: Callable[..., np.ndarray]) -> None:
    found = as_array(vectors(post(api, input=CHUNKS, late_chunking=True)))
    spans, at = [], 0
    for chunk in CHUNKS:
        spans.append({"start": at, "end": at + len(chunk)})
        at += len(chunk)
    chunking = {"type": "spans", "spans": spans, "context": "late"}
    own = api.post("/v1/documents", json={"text": "".join(CHUNKS), "chunking": chunking}).json()
    assert np.array_equal(found, as_array([chunk["vector"] for chunk in own["chunks"]]))
    assert not np.array_equal(found, late_chunks(CHUNKS))


def test_task_and_objects(api: httpx.Client, plain: Callable[..., np.ndarray]) -> None:
    expected = plain(TEXTS)
    answer = post(api, input=TEXTS, task="retrieval.passage", normalized=True, truncate=True)
    assert np.array_equal(as_array(vectors(answer)), expected)
    objects = [{"text": text} for text in TEXTS]
    assert np.array_equal(as_array(vectors(post(api, input=objects))), expected)
    assert np.array_equal(as_array(vectors(post(api, input=objects[0]))), expected[:1])
    answer = post(api, input=TEXTS, normalized=False, dimensions=16)
    raw = plain(TEXTS, normalize=False, dimensions=16)
    assert np.array_equal(as_array(vectors(answer)), raw)


@pytest.mark.parametrize("kind", ["int8", "ubinary", "base64"])
def test_embedding_types(api: httpx.Client, kind: str) -> None:
    asked = {"encoding_format": "base64"} if kind == "base64" else {"output_dtype": kind}
    own = vectors(api.post("/v1/embeddings", json={"input": TEXTS, **asked}))
    assert vectors(post(api, input=TEXTS, embedding_type=kind)) == own
    assert vectors(post(api, input=TEXTS, embedding_type=[kind])) == own


def segment(api: httpx.Client, **body: Any) -> httpx.Response:
    return api.post("/v1/segment", json=body)


def test_segments(api: httpx.Client) -> None:
    text = "".join(CHUNKS) * 3
    options = {"return_chunks": True, "return_tokens": True, "max_chunk_length": 70}
    found = segment(api, content=text, tokenizer="jina-embeddings-v3", **options).json()
    own = api.post("/v1/tokenize", json={"text": text}).json()
    assert "".join(found["chunks"]) == text
    assert all(len(chunk) <= 70 for chunk in found["chunks"])
    assert found["num_chunks"] == len(found["chunks"]) > 3
    assert [text[start:end] for start, end in found["chunk_positions"]] == found["chunks"]
    assert found["num_tokens"] == own["count"] - 2
    assert [number for chunk in found["tokens"] for _, [number] in chunk] == own["ids"][1:-1]
    for chunk, tokens in zip(found["chunks"], found["tokens"], strict=True):
        assert [token for token, _ in tokens] == api.post(
            "/v1/tokenize", json={"text": chunk}
        ).json()["tokens"][1:-1]
    assert found["tokenizer"] == "jina-embeddings-v3"


def test_segments_of_the_first_or_last_tokens(api: httpx.Client) -> None:
    text = "one two three four five"
    options = {"return_chunks": True, "return_tokens": True}
    tail = segment(api, content=text, tail=2, **options).json()
    assert (tail["chunks"], tail["num_tokens"]) == (["four five"], 2)
    assert tail["chunk_positions"] == [[14, 23]]
    assert [token for token, _ in tail["tokens"][0]] == ["four", "five"]
    assert segment(api, content=text, head=3, **options).json()["chunks"] == ["one two three"]
    assert segment(api, content=text, head=99, **options).json()["chunks"] == [text]
    assert segment(api, content=text).json() == {
        "num_tokens": 5,
        "tokenizer": "default",
        "usage": {"tokens": 0},
    }


def test_the_tokens_of_a_long_text_are_written_with_the_event_loop_free_in_between() -> None:
    places = np.arange(80_000)
    found = Tokenization(
        ids=np.full(80_000, 1037, np.int32),
        offsets=np.stack([places, places + 1], axis=1).astype(np.int32),
        tokens=("a",) * 80_000,
    )
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def write() -> bytes:
        counting = asyncio.create_task(count())
        written = await _by_chunk(found, places, [0, 40_000])
        counting.cancel()
        return whole_body(json_response(written))

    assert orjson.loads(asyncio.run(write())) == [[["a", [1037]]] * 40_000] * 2
    assert turns > 5


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "content"),
        ({"content": ""}, "content"),
        ({"content": "a", "tokenizer": "cl100k_base"}, "tokenizer"),
        ({"content": "a", "max_chunk_length": 0, "return_chunks": True}, "max_chunk_length"),
        ({"content": "a", "max_chunk_length": 0}, "max_chunk_length"),
        ({"content": "a", "head": 0}, "head"),
        ({"content": "a", "head": 1, "tail": 1}, "tail"),
    ],
)
def test_segments_that_are_refused(api: httpx.Client, body: dict[str, Any], param: str) -> None:
    answer = segment(api, **body)
    assert 400 <= answer.status_code < 500
    assert answer.json()["error"]["param"] == param
    assert answer.json()["detail"] == answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"input": [{"image": "data:image/png;base64,"}]}, "input[0].image"),
        ({"input": {"image": "data:image/png;base64,"}}, "input.image"),
        ({"input": {"text": 5}}, "input"),
        ({"input": ["a", {"text": "a", "title": "b"}]}, "input[1]"),
        ({"input": [{"a": 1}], "task": "separation"}, "input[0]"),
        ({"input": ["a"], "return_multivector": True}, "return_multivector"),
        ({"input": ["a", ""], "late_chunking": True}, "input[1]"),
        ({"input": [[7, 8]], "late_chunking": True}, "input[0]"),
        ({"input": ["a"], "embedding_type": ["float", "int8"]}, "embedding_type"),
        ({"input": ["a"], "embedding_type": []}, "embedding_type"),
        ({"input": ["a"], "embedding_type": "int8", "normalized": False}, "normalized"),
        ({"input": ["a"], "encoding_type": "int8", "embedding_type": "float"}, "embedding_type"),
        (
            {"input": ["a"], "embedding_type": "base64", "encoding_format": "float"},
            "encoding_format",
        ),
        ({"input": ["a"], "task": "separation", "colour": 1}, "colour"),
        ({"input": ["a"], "task": "separation", "dimensions": 9999}, "dimensions"),
    ],
)
def test_what_is_refused(api: httpx.Client, body: dict[str, Any], param: str) -> None:
    answer = post(api, **body)
    assert 400 <= answer.status_code < 500
    assert answer.json()["error"]["param"] == param
    assert answer.json()["detail"] == answer.json()["error"]["message"]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore::pydantic.warnings.PydanticDeprecatedSince20")
def test_llama_index(url: str, api: httpx.Client, plain: Callable[..., np.ndarray]) -> None:
    jinaai = pytest.importorskip("llama_index.embeddings.jinaai", reason="the extra dialects")
    embedder = jinaai.JinaEmbedding(api_key=KEY, model="jina-embeddings-v3")
    embedder._api.api_url = f"{url}/v1/embeddings"
    assert np.array_equal(as_array(embedder.get_text_embedding_batch(TEXTS)), plain(TEXTS))
    late = jinaai.JinaEmbedding(api_key=KEY, late_chunking=True, task="retrieval.passage")
    late._api.api_url = f"{url}/v1/embeddings"
    own = vectors(post(api, input=CHUNKS, late_chunking=True))
    assert np.array_equal(as_array(late.get_text_embedding_batch(CHUNKS)), as_array(own))
    late._api._session.headers["Authorization"] = "Bearer of-somebody-unknown"
    with pytest.raises(RuntimeError, match="API key is not valid"):
        late.get_text_embedding("a")
    for one in (embedder, late):
        one._api._session.close()


def test_haystack(
    url: str,
    api: httpx.Client,
    plain: Callable[..., np.ndarray],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HAYSTACK_TELEMETRY_ENABLED", "False")
    jina = pytest.importorskip(
        "haystack_integrations.components.embedders.jina", reason="the extra dialects"
    )
    from haystack import Document
    from haystack.utils import Secret

    options: Any = {"api_key": Secret.from_token(KEY), "base_url": f"{url}/v1/embeddings"}
    documents = [Document(content=text) for text in CHUNKS]
    embedder = jina.JinaDocumentEmbedder(**options, progress_bar=False, late_chunking=True)
    found = [document.embedding for document in embedder.run(documents)["documents"]]
    own = vectors(post(api, input=CHUNKS, late_chunking=True))
    assert np.array_equal(as_array(found), as_array(own))
    of_queries = jina.JinaTextEmbedder(**options, task="retrieval.query")
    assert np.array_equal(as_array([of_queries.run("a text")["embedding"]]), plain(["a text"]))
    unknown = jina.JinaTextEmbedder(**options, model="jina-embeddings-v9")
    with pytest.raises(RuntimeError, match="unknown model 'jina-embeddings-v9'"):
        unknown.run("a text")
