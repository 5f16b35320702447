"""One server for all vendors' clients: it needs a key, and knows the names that they ask for."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import httpx
import numpy as np
import pytest

from tests.service.clients.clients_apart import environment_with
from tests.service.conftest import RunningServer, launch

if TYPE_CHECKING:
    from tests.conftest import WriteCheckpoint

KEY = "a-key-of-those-who-know"
MAX_TOKENS = 1_000_000
ALIASES = (
    *("voyage-context-4", "voyage-3.5", "rerank-2.5"),
    *("jina-embeddings-v3", "jina-reranker-v2-base-multilingual"),
    *("embed-v4.0", "rerank-v3.5"),
    *("nomic-embed-text", "served"),
)

CHUNKS = [
    "The cat sat on the mat. ",
    "It was warm there, and nobody came. ",
    "In the evening it rained; the cat went in.",
]

RunApart = Callable[[str, str], Any]


@pytest.fixture(scope="session")
def vendors(
    tmp_path_factory: pytest.TempPathFactory, write_checkpoint: WriteCheckpoint
) -> Iterator[RunningServer]:
    """`short` is a model that reads at most 64 tokens."""
    folder = str(write_checkpoint())
    settings = {
        "LLN_MODELS": f"default,{folder}",
        "LLN_MODEL_ALIASES": ",".join(
            [*(f"{name}=default" for name in ALIASES), f"short={folder}"]
        ),
        "LLN_ENGINE__MAX_SOFTMAX_TEXT_TOKENS": "64",
        "LLN_API_KEYS": KEY,
    }
    running = launch(tmp_path_factory.mktemp("vendors"), settings)
    yield running
    assert running.stop() == 0, running.log()


@pytest.fixture(scope="session")
def small_model(
    tmp_path_factory: pytest.TempPathFactory, write_checkpoint: WriteCheckpoint
) -> Iterator[RunningServer]:
    """A server of a model so small that much text takes little time."""
    folder = str(write_checkpoint())
    settings = {
        "LLN_MODELS": folder,
        "LLN_MODEL_ALIASES": json.dumps({"default": folder}),
        "LLN_ENGINE__MAX_SOFTMAX_TEXT_TOKENS": str(MAX_TOKENS),
    }
    running = launch(tmp_path_factory.mktemp("small"), settings)
    yield running
    assert running.stop() == 0, running.log()


@pytest.fixture
def url(vendors: RunningServer) -> str:
    return vendors.http_url


@pytest.fixture
def api(url: str) -> Iterator[httpx.Client]:
    headers = {"authorization": f"Bearer {KEY}"}
    with httpx.Client(base_url=url, headers=headers, timeout=120) as client:
        yield client


@pytest.fixture
def late_chunks(api: httpx.Client) -> Callable[..., np.ndarray]:
    """Vectors of our own route for the same chunks: what each dialect must answer to the bit."""

    def ask(chunks: list[str], **fields: Any) -> np.ndarray:
        spans, at = [], 0
        for chunk in chunks:
            spans.append({"start": at, "end": at + len(chunk)})
            at += len(chunk)
        chunking = {"type": "spans", "spans": spans}
        body = {"text": "".join(chunks), "chunking": chunking, **fields}
        answer = api.post("/v1/documents", json=body).raise_for_status().json()
        return as_array([chunk["vector"] for chunk in answer["chunks"]])

    return ask


@pytest.fixture
def plain(api: httpx.Client) -> Callable[..., np.ndarray]:
    """Vectors of our own route for texts."""

    def ask(texts: list[str], **fields: Any) -> np.ndarray:
        body = {"input": texts, **fields}
        answer = api.post("/v1/embeddings", json=body).raise_for_status().json()
        return as_array([item["embedding"] for item in answer["data"]])

    return ask


def as_array(vectors: Any) -> np.ndarray:
    return np.asarray(vectors, np.float32)


@pytest.fixture(scope="session")
def run_apart() -> RunApart:
    """Runs a program with clients that do not fit beside the others, from the folder where
    tools/install_clients.py puts them. The program prints JSON."""

    def run(group: str, program: str) -> Any:
        finished = subprocess.run(
            [sys.executable, "-c", program],
            env=environment_with(group),
            capture_output=True,
            text=True,
            timeout=150,
        )
        assert finished.returncode == 0, finished.stderr[-4000:]
        return json.loads(finished.stdout.splitlines()[-1])

    return run
