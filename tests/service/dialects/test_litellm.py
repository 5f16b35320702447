"""LiteLLM's providers for other vendors, as released, each with our address."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import numpy as np

from tests.service.dialects.conftest import KEY, RunApart, as_array

TEXTS = ["a text", "another, somewhat longer"]

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

PROGRAM = """
import json
import litellm
litellm.suppress_debug_info = True
url, key, texts, providers = {url!r}, {key!r}, {texts!r}, {providers!r}
found = {{}}
for name, (model, path, fields) in providers.items():
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
print(json.dumps(found))
"""


def test_providers(
    run_apart: RunApart, url: str, api: httpx.Client, plain: Callable[..., np.ndarray]
) -> None:
    program = PROGRAM.format(url=url, key=KEY, texts=TEXTS, providers=PROVIDERS)
    found = run_apart("litellm", program)
    for name, (_, _, fields) in PROVIDERS.items():
        expected = plain(TEXTS, **{key: fields[key] for key in fields if key == "dimensions"})
        assert np.array_equal(as_array(found[name]), expected), name
    body = {"inputs": TEXTS, "enable_auto_chunking": True, "chunk_size": 32_000}
    own = api.post("/v1/contextualizedembeddings", json=body).json()
    vectors = [item["data"][0]["embedding"] for item in own["data"]]
    assert np.array_equal(as_array(found["contextual"]), as_array(vectors))
    assert "output_dimension must be 1 to 384" in found["error"]
