"""Clients that others wrote, and the examples of the README, against a server as it is."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
from langchain_openai import OpenAIEmbeddings
from pydantic import SecretStr

from tests.service.outside import vectors_of

ROOT = Path(__file__).parents[2]
TEXTS = ["The cat sat on the mat.", "Nothing of note happened."]


def test_langchain(server: Any, http: httpx.Client) -> None:
    embeddings = OpenAIEmbeddings(
        base_url=f"{server.http_url}/v1",
        api_key=SecretStr("unused"),
        model="default",
        # Otherwise it sends the token ids of a tokenizer of OpenAI's.
        check_embedding_ctx_length=False,
    )
    expected = vectors_of(http, input=TEXTS)
    for found, vector in zip(embeddings.embed_documents(TEXTS), expected, strict=True):
        assert found == pytest.approx(vector, abs=1e-6)
    assert embeddings.embed_query(TEXTS[0]) == pytest.approx(expected[0], abs=2e-6)


@pytest.fixture(scope="module")
def node_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the script and OpenAI's package for JavaScript."""
    npm = shutil.which("npm")
    if npm is None or shutil.which("node") is None:
        pytest.skip("Node.js is not installed")
    folder = tmp_path_factory.mktemp("node")
    for file in (ROOT / "tests" / "javascript").iterdir():
        shutil.copy(file, folder)
    command = [npm, "install", "--no-audit", "--no-fund", "--ignore-scripts"]
    installed = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120)
    if installed.returncode:
        pytest.skip(f"npm cannot reach a registry: {installed.stderr.strip()[-200:]}")
    return folder


@pytest.mark.slow
def test_openai_for_javascript(node_folder: Path, server: Any, http: httpx.Client) -> None:
    command = ["node", "openai_client.mjs", f"{server.http_url}/v1", *TEXTS]
    finished = subprocess.run(command, cwd=node_folder, capture_output=True, text=True, timeout=60)
    assert finished.returncode == 0, finished.stderr
    found = json.loads(finished.stdout)
    expected = vectors_of(http, input=TEXTS)
    for vector, wanted in zip(found["vectors"], expected, strict=True):
        assert vector == pytest.approx(wanted, abs=1e-6)
    assert found["tokens"] > 0
    assert found["refusal"] == {"status": 400, "code": "empty_text", "param": "input[0]"}


def examples(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)


CURL = [example for example in examples("sh") if "curl" in example]


def test_there_are_examples() -> None:
    assert len(CURL) >= 3


@pytest.mark.parametrize("example", CURL)
def test_curl_examples_of_the_readme(server: Any, example: str) -> None:
    command = example.replace("http://localhost:8000", server.http_url)
    assert command != example
    command = command.replace("python3 -c", f"{sys.executable} -c")
    finished = subprocess.run(
        ["sh", "-c", command], capture_output=True, text=True, timeout=120, check=True
    )
    first_event, *_ = finished.stdout.splitlines()  # of a stream; other answers are one line
    assert "error" not in json.loads(first_event)


@pytest.mark.parametrize(("client", "printed"), [("OpenAI(", "384 "), ("LLNClient(", "(2, 384)")])
def test_python_examples_of_the_readme(server: Any, client: str, printed: str) -> None:
    [example] = [example for example in examples("python") if client in example]
    script = example.replace("http://localhost:8000", server.http_url)
    finished = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True
    )
    assert finished.stdout.startswith(printed)
