"""Ollama's client and LangChain's, as released: they index here; generation is refused plainly."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import httpx
import numpy as np
import pytest

from service.version import version_of
from tests.service.dialects.conftest import ALIASES, KEY, as_array

TEXTS = ["a text", "another, somewhat longer"]
MODEL = "nomic-embed-text"
HEADERS = {"Authorization": f"Bearer {KEY}"}


@pytest.fixture
def client(url: str) -> Iterator[Any]:
    ollama = pytest.importorskip("ollama", reason="comes with the extra dialects")
    client = ollama.Client(host=url, headers=HEADERS)
    yield client
    client._client.close()


def test_embeddings(client: Any, plain: Callable[..., np.ndarray]) -> None:
    answer = client.embed(MODEL, TEXTS, options={"num_ctx": 512, "temperature": 0}, keep_alive="5m")
    assert np.array_equal(as_array(answer.embeddings), plain(TEXTS))
    assert answer.model == MODEL
    assert answer.total_duration > 0
    short = client.embed(f"{MODEL}:latest", TEXTS[0], dimensions=24)
    assert np.array_equal(as_array(short.embeddings), plain(TEXTS[:1], dimensions=24))
    old = client.embeddings(MODEL, TEXTS[0]).embedding
    assert np.array_equal(as_array([old]), plain(TEXTS[:1]))


def test_tokens_are_counted(client: Any, api: httpx.Client) -> None:
    counts = [api.post("/v1/tokenize", json={"text": text}).json()["count"] for text in TEXTS]
    assert client.embed(MODEL, TEXTS).prompt_eval_count == sum(counts)


def test_models(client: Any, api: httpx.Client) -> None:
    names = [model.model for model in client.list().models]
    assert names[: len(ALIASES) + 1] == ["default", *ALIASES]
    assert "short" in names
    assert [model.model for model in client.ps().models] == names
    shown = client.show(f"{MODEL}:latest")
    assert shown.capabilities == ["embedding"]
    assert shown.modelinfo["bert.embedding_length"] == 384
    assert shown.modelinfo["bert.context_length"] == 1_048_576
    assert api.get("/api/version").json() == {"version": version_of("lln")}


def test_what_is_not_done_here(client: Any) -> None:
    ollama = pytest.importorskip("ollama")
    with pytest.raises(ollama.ResponseError, match="embeds texts and generates none"):
        client.generate(MODEL, "Once upon a time")
    with pytest.raises(ollama.ResponseError, match="embeds texts and generates none"):
        list(client.chat(MODEL, [{"role": "user", "content": "Hello"}], stream=True))
    for change in (client.pull, client.delete):
        with pytest.raises(ollama.ResponseError, match="chosen when it starts"):
            change(MODEL)
    with pytest.raises(ollama.ResponseError, match="unknown model 'llama3'"):
        client.embed("llama3", "a text")
    with pytest.raises(ollama.ResponseError, match="colour is not one of Ollama"):
        client.embed(MODEL, "a text", options={"colour": 1})


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/api/embed", {"model": MODEL}, "input"),
        ("/api/embed", {"model": MODEL, "input": ["a", ""]}, "input[1]"),
        ("/api/embed", {"model": MODEL, "input": ""}, "input"),
        ("/api/embed", {"model": MODEL, "input": "a", "dimensions": 0}, "dimensions"),
        ("/api/embed", {"model": MODEL, "input": "a", "colour": 1}, "colour"),
        ("/api/embeddings", {"model": MODEL, "prompt": ""}, "prompt"),
        ("/api/show", {}, "model"),
        ("/api/show", {"model": MODEL, "name": "other"}, "name"),
    ],
)
def test_what_is_refused(api: httpx.Client, path: str, body: dict[str, Any], param: str) -> None:
    answer = api.post(path, json=body)
    assert 400 <= answer.status_code < 500
    assert answer.json()["param"] == param
    assert isinstance(answer.json()["error"], str)


def test_a_body_as_curl_sends_it(api: httpx.Client) -> None:
    """Ollama's documentation says `curl -d`, which declares a form; a page could send one too."""
    form = {"content-type": "application/x-www-form-urlencoded"}
    body = b'{"model": "nomic-embed-text", "input": "a text"}'
    assert api.post("/api/embed", content=body, headers=form).status_code == 200
    from_page = form | {"origin": str(api.base_url).rstrip("/")}
    assert api.post("/api/embed", content=body, headers=from_page).status_code == 415


def test_langchain(url: str, plain: Callable[..., np.ndarray]) -> None:
    langchain = pytest.importorskip("langchain_ollama", reason="comes with the extra dialects")
    embedder = langchain.OllamaEmbeddings(
        model=MODEL, base_url=url, client_kwargs={"headers": HEADERS}
    )
    assert np.array_equal(as_array(embedder.embed_documents(TEXTS)), plain(TEXTS))
    assert np.array_equal(as_array([embedder.embed_query(TEXTS[0])]), plain(TEXTS[:1]))
    embedder._client._client.close()
