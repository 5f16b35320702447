"""`lln serve` starts without what it does not need, and leaves Python as it found it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.servers import free_port
from tests.service.processes import clean_environment

ROOT = Path(__file__).resolve().parents[2]

_SERVED_AND_LOOKED_AT = """
import gc, json, os, signal, sys, threading, time, urllib.request
from service.cli.__main__ import main

def ask(path, body=None):
    url = f"http://127.0.0.1:{os.environ['LLN_HTTP_PORT']}{path}"
    head = {"content-type": "application/json"}
    return urllib.request.urlopen(urllib.request.Request(url, body, head)).read()

def look():
    while True:
        try:
            ask("/health/ready")
            break
        except OSError:
            time.sleep(0.05)
    ask("/v1/embeddings", b'{"model": "default", "input": "A text."}')
    from service.http.dialects.vllm_bodies import PoolingAnswer
    from service.http.schemas.embedding import EmbeddingsBody
    from service.http.schemas.responses.embedding import EmbeddingsAnswer
    forms = EmbeddingsBody, EmbeddingsAnswer, PoolingAnswer
    found = {
        "modules": list(sys.modules),
        "built": [form.__name__ for form in forms if form.__pydantic_complete__],
        "collects": gc.isenabled(),
        "frozen": gc.get_freeze_count(),
        "turn_s": sys.getswitchinterval(),
    }
    print(json.dumps(found), flush=True)
    os.kill(os.getpid(), signal.SIGTERM)

threading.Thread(target=look, daemon=True).start()
sys.exit(main(["serve"]))
"""

NOT_TO_SERVE = {
    # torch's compiler and what it brings with it
    *("torch._dynamo", "torch._inductor", "sympy"),
    # kernels for GPUs
    *("triton", "kernels.attention.gpu"),
    # what other commands and routes import when they run
    *("engine.claims", "engine.evaluation", "engine.experiments", "engine.training"),
    *("matplotlib", "pandas", "pyarrow", "ray", "scipy", "sentence_transformers", "transformers"),
    *("numpy.ma", "numpy.random", "opentelemetry.sdk"),
}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A server on the CPU in an interpreter of its own, after its first answer."""
    folder = tmp_path_factory.mktemp("served")
    settings = clean_environment(
        LLN_HTTP_PORT=str(free_port()),
        LLN_GRPC_PORT="0",
        LLN_MODELS="default",
        LLN_ENGINE__DEVICE="cpu",
        LLN_BATCH_FOLDER=str(folder / "batches"),
        LLN_BENCHMARK_HISTORY=str(folder / "history.sqlite"),
    )
    finished = subprocess.run(
        [sys.executable, "-c", _SERVED_AND_LOOKED_AT],
        env=settings,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert finished.returncode == 0, finished.stderr
    found: dict[str, Any] = json.loads(finished.stdout)
    return found


@pytest.mark.long
def test_a_server_imports_what_it_needs(served: dict[str, Any]) -> None:
    assert NOT_TO_SERVE.isdisjoint(served["modules"])
    assert {"torch", "fastapi", "grpc", "engine.async_engine"} <= set(served["modules"])


def test_answers_are_modelled_only_when_somebody_reads_their_description(
    served: dict[str, Any],
) -> None:
    assert served["built"] == ["EmbeddingsBody"]


def test_a_server_collects_garbage_but_not_what_it_loaded(served: dict[str, Any]) -> None:
    assert served["collects"]
    assert served["frozen"] > 100_000
    assert served["turn_s"] == pytest.approx(0.005)
