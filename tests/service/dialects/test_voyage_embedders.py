"""Voyage's embedders in LangChain, LlamaIndex and Haystack, as released."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from tokenizers import Tokenizer

from tests.service.dialects.conftest import CHUNKS, KEY, RunApart, as_array

pytestmark = pytest.mark.long

TEXTS = ["a text", "another, somewhat longer"]


@pytest.fixture
def voyageai(monkeypatch: pytest.MonkeyPatch, minilm_folder: Path) -> Any:
    """With a tokenizer in place of Voyage's, which it downloads to make its batches."""
    module = pytest.importorskip("voyageai", reason="comes with the extra dialects")
    tokenizer = Tokenizer.from_file(str(minilm_folder / "tokenizer.json"))
    monkeypatch.setattr(module.Client, "tokenizer", lambda self, model: tokenizer)
    return module


def cut_here(api: httpx.Client, texts: list[str]) -> np.ndarray:
    """Each text as a document of one chunk."""
    body = {"inputs": [[text] for text in texts], "enable_auto_chunking": True}
    answer = api.post("/v1/contextualizedembeddings", json=body | {"chunk_size": 32_000})
    return as_array([item["data"][0]["embedding"] for item in answer.json()["data"]])


@pytest.mark.usefixtures("voyageai")
def test_langchain(url: str, api: httpx.Client, plain: Callable[..., np.ndarray]) -> None:
    langchain = pytest.importorskip("langchain_voyageai", reason="the extra dialects")
    options: dict[str, Any] = {"base_url": f"{url}/v1", "api_key": KEY}
    contextual = langchain.VoyageAIEmbeddings(model="voyage-context-4", **options)
    assert np.array_equal(as_array(contextual.embed_documents(TEXTS)), cut_here(api, TEXTS))
    assert np.array_equal(as_array([contextual.embed_query("a text")]), plain(["a text"]))
    ordinary = langchain.VoyageAIEmbeddings(model="voyage-3.5", **options)
    assert np.array_equal(as_array(ordinary.embed_documents(TEXTS)), plain(TEXTS))


def test_haystack(
    url: str,
    voyageai: Any,
    late_chunks: Callable[..., np.ndarray],
    plain: Callable[..., np.ndarray],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HAYSTACK_TELEMETRY_ENABLED", "False")
    embedders = pytest.importorskip(
        "haystack_integrations.components.embedders.voyage_embedders", reason="the extra dialects"
    )
    from haystack import Document
    from haystack.utils import Secret

    ours = voyageai.Client(api_key=KEY, base_url=f"{url}/v1")
    options: dict[str, Any] = {"api_key": Secret.from_token(KEY)}
    contextual = embedders.VoyageContextualizedDocumentEmbedder(
        model="voyage-context-4", progress_bar=False, **options
    )
    contextual._client = ours
    documents = [Document(content=text, meta={"source_id": "one"}) for text in CHUNKS]
    found = [document.embedding for document in contextual.run(documents)["documents"]]
    assert np.array_equal(as_array(found), late_chunks(CHUNKS))
    ordinary = embedders.VoyageDocumentEmbedder(model="voyage-3.5", progress_bar=False, **options)
    ordinary._client = ours
    found = [
        document.embedding
        for document in ordinary.run([Document(content=text) for text in TEXTS])["documents"]
    ]
    assert np.array_equal(as_array(found), plain(TEXTS))
    of_queries = embedders.VoyageTextEmbedder(model="voyage-3.5", **options)
    of_queries._client = ours
    assert np.array_equal(as_array([of_queries.run("a text")["embedding"]]), plain(["a text"]))


def test_llama_index(
    run_apart: RunApart,
    url: str,
    api: httpx.Client,
    plain: Callable[..., np.ndarray],
    minilm_folder: Path,
) -> None:
    """It needs an older client of Voyage's."""
    program = f"""
import json
import voyageai
from llama_index.embeddings.voyageai import VoyageEmbedding
from tokenizers import Tokenizer
tokenizer = Tokenizer.from_file({str(minilm_folder / "tokenizer.json")!r})
voyageai.Client.tokenizer = lambda self, model: tokenizer
found = []
embedder = VoyageEmbedding(model_name="voyage-3.5", voyage_api_key={KEY!r})
embedder._client = voyageai.Client(api_key={KEY!r}, base_url={url!r} + "/v1")
found.append(embedder.get_text_embedding_batch({TEXTS!r}))
found.append([embedder.get_query_embedding({TEXTS[0]!r})])
print(json.dumps(found))
"""
    documents, queries = run_apart("llama-index-voyageai", program)
    assert np.array_equal(as_array(documents), plain(TEXTS))
    assert np.array_equal(as_array(queries), plain(TEXTS[:1]))
