"""Published contracts: answers fit openapi.json, service/pb is generated from proto/, and made-up
requests break neither."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import BaseModel

from service.http.schemas.responses.base import ErrorAnswer
from service.http.schemas.responses.benchmarks import BenchmarkAnswer, BenchmarkList
from service.http.schemas.responses.diagnostics import DiagnosticsAnswer
from service.http.schemas.responses.embedding import (
    DocumentAnswer,
    EmbeddingsAnswer,
    TokenStates,
    VectorList,
)
from service.http.schemas.responses.models import Health, InfoAnswer, ModelAnswer, ModelList
from service.http.schemas.responses.ranking import RankAnswer, RankList, ScoreList
from service.http.schemas.responses.tokens import TextList, TokenizeAnswer, TokenLists

TEXT = "A text of some words, to be embedded and looked at."


@pytest.mark.parametrize(
    ("path", "body", "answer"),
    [
        ("/v1/embeddings", {"input": [TEXT, TEXT]}, EmbeddingsAnswer),
        ("/v1/embeddings", {"input": TEXT, "encoding_format": "base64"}, EmbeddingsAnswer),
        ("/v1/documents", {"text": TEXT}, DocumentAnswer),
        ("/v1/documents", {"text": TEXT, "chunking": {"type": "fixed"}}, DocumentAnswer),
        ("/v1/tokenize", {"text": TEXT}, TokenizeAnswer),
        ("/v1/diagnostics", {"text": TEXT, "quantiles": [0.5, 1]}, DiagnosticsAnswer),
        ("/v1/benchmarks", {"lengths": [16], "repeats": 1}, BenchmarkAnswer),
        ("/v1/embeddings", {"input": []}, ErrorAnswer),
        ("/embed", {"inputs": TEXT}, VectorList),
        ("/embed_all", {"inputs": [TEXT, TEXT]}, TokenStates),
        ("/embed", {"inputs": []}, ErrorAnswer),
        ("/rerank", {"query": TEXT, "texts": [TEXT], "return_text": True}, RankList),
        ("/v1/rerank", {"query": TEXT, "documents": [TEXT]}, RankAnswer),
        (
            "/similarity",
            {"inputs": {"source_sentence": TEXT, "sentences": [TEXT]}},
            ScoreList,
        ),
        ("/tokenize", {"inputs": [TEXT, TEXT]}, TokenLists),
        ("/decode", {"ids": [[101, 102]]}, TextList),
    ],
)
def test_answers_of_posts(
    http: httpx.Client, path: str, body: dict[str, Any], answer: type[BaseModel]
) -> None:
    answer.model_validate_json(http.post(path, json=body).content, strict=True)


@pytest.mark.parametrize(
    ("path", "answer"),
    [
        ("/v1/models", ModelList),
        ("/v1/models/default", ModelAnswer),
        ("/v1/benchmarks", BenchmarkList),
        ("/info", InfoAnswer),
        ("/health", Health),
        ("/health/live", Health),
        ("/nowhere", ErrorAnswer),
    ],
)
def test_answers_of_gets(http: httpx.Client, path: str, answer: type[BaseModel]) -> None:
    answer.model_validate_json(http.get(path).content, strict=True)


ROOT = Path(__file__).parents[2]
GENERATE = "-m grpc_tools.protoc -I service/pb=proto --python_out=. --pyi_out=. --grpc_python_out=."


def generated_files(root: Path) -> dict[Path, str]:
    folder = root / "service" / "pb"
    found = [*folder.rglob("*.py"), *folder.rglob("*.pyi")]
    return {path.relative_to(root): path.read_text() for path in found}


def test_generated_code_is_current(tmp_path: Path) -> None:
    pytest.importorskip("grpc_tools", reason="the generator comes with the dev extra")
    shutil.copytree(ROOT / "proto", tmp_path / "proto")
    protos = [path.relative_to(tmp_path) for path in tmp_path.rglob("*.proto")]
    subprocess.run([sys.executable, *GENERATE.split(), *protos], cwd=tmp_path, check=True)

    assert generated_files(ROOT) == generated_files(tmp_path)


def test_proto_folder_holds_no_python() -> None:
    # A Python package called proto would shadow another distribution's.
    assert not list((ROOT / "proto").rglob("*.py*"))


@pytest.mark.slow
def test_fuzz() -> None:
    command = [sys.executable, "-m", "tests.fuzz", "--http-examples", "3", "--grpc-cases", "300"]
    finished = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=170)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    sent = re.search(r"^(\d+) requests over HTTP$", finished.stdout, re.MULTILINE)
    assert sent is not None
    assert int(sent[1]) >= 300
    assert "300 calls over gRPC, 0 failures" in finished.stdout
