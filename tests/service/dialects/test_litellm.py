"""LiteLLM's providers for other vendors, as released, each with our address.

One process asks everything: to import LiteLLM takes seconds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import numpy as np
import pytest

from tests.service.conftest import RunningServer
from tests.service.dialects.conftest import KEY, RunApart, as_array

pytestmark = pytest.mark.long

TEXTS = ["a text", "another, somewhat longer"]
QUERY = "weather"
RANKED = ["The cat sat.", "Rain fell in the evening.", "Nothing of note."]

PROVIDERS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "voyage": ("voyage/voyage-3.5", "/v1", {}),
    "voyage, fewer": ("voyage/voyage-3.5", "/v1", {"dimensions": 64}),
    "jina": ("jina_ai/jina-embeddings-v3", "/v1", {}),
    "jina, a task": ("jina_ai/jina-embeddings-v3", "/v1", {"task": "retrieval.passage"}),
    "cohere": ("cohere/embed-v4.0", "/v2/embed", {}),
    "cohere, fewer": ("cohere/embed-v4.0", "/v2/embed", {"dimensions": 64}),
    "ollama": ("ollama/nomic-embed-text", "", {}),
    "infinity": ("infinity/served", "", {}),
    "infinity, fewer": ("infinity/served", "", {"dimensions": 64}),
    "vllm": ("hosted_vllm/served", "/v1", {}),
    "vllm, fewer": ("hosted_vllm/served", "/v1", {"dimensions": 64}),
}
RERANKERS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "voyage": ("voyage/rerank-2.5", "/v1", {"top_n": 3}),
    "jina": ("jina_ai/jina-reranker-v2-base-multilingual", "/v1/rerank", {}),
    "cohere": ("cohere/rerank-v3.5", "", {}),
    "infinity": ("infinity/served", "", {}),
    "vllm": ("hosted_vllm/served", "/v1", {}),
}

PROGRAM = """
import json
import litellm
litellm.suppress_debug_info = True
url, key, texts, query, ranked = {url!r}, {key!r}, {texts!r}, {query!r}, {ranked!r}
found, ranks = {{}}, {{}}
for name, (model, path, fields) in {providers!r}.items():
    answer = litellm.embedding(model=model, input=texts, api_base=url + path, api_key=key, **fields)
    found[name] = [item["embedding"] for item in answer.data]
contextual = litellm.embedding(
    model="voyage/voyage-context-4", input=texts, api_base=url + "/v1", api_key=key
)
found["contextual"] = [item["data"][0]["embedding"] for item in contextual.data]
try:
    litellm.embedding(
        model="voyage/voyage-3.5", input=texts, api_base=url + "/v1", api_key=key, dimensions=9999
    )
except Exception as error:
    found["error"] = str(error)
for name, (model, path, fields) in {rerankers!r}.items():
    answer = litellm.rerank(
        model=model, query=query, documents=ranked, api_base=url + path, api_key=key, **fields
    )
    ranks[name] = [
        [one["index"], one["relevance_score"], one["document"]["text"]] for one in answer.results
    ]
print(json.dumps([found, ranks]))
"""


@pytest.fixture(scope="module")
def answers(run_apart: RunApart, vendors: RunningServer) -> Any:
    """Vectors by provider, and ranks."""
    program = PROGRAM.format(
        url=vendors.http_url,
        key=KEY,
        texts=TEXTS,
        providers=PROVIDERS,
        query=QUERY,
        ranked=RANKED,
        rerankers=RERANKERS,
    )
    return run_apart("litellm", program)


def test_providers(answers: Any, api: httpx.Client, plain: Callable[..., np.ndarray]) -> None:
    found, _ = answers
    for name, (_, _, fields) in PROVIDERS.items():
        expected = plain(TEXTS, **{key: fields[key] for key in fields if key == "dimensions"})
        assert np.array_equal(as_array(found[name]), expected), name
    body = {"inputs": TEXTS, "enable_auto_chunking": True, "chunk_size": 32_000}
    own = api.post("/v1/contextualizedembeddings", json=body).json()
    vectors = [item["data"][0]["embedding"] for item in own["data"]]
    assert np.array_equal(as_array(found["contextual"]), as_array(vectors))
    assert "output_dimension must be 1 to 384" in found["error"]


def test_rerankers(answers: Any, api: httpx.Client) -> None:
    """Its Voyage provider needs `top_n`: without, nothing in the body is Voyage's."""
    _, ranks = answers
    own = api.post("/v1/rerank", json={"query": QUERY, "documents": RANKED}).json()["results"]
    ours = [[one["index"], one["relevance_score"], RANKED[one["index"]]] for one in own]
    assert ranks == dict.fromkeys(RERANKERS, ours)
