"""openapi.json is true: what the server answers fits the models it documents."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from pydantic import BaseModel

from service.http.answers import (
    BenchmarkAnswer,
    BenchmarkList,
    DiagnosticsAnswer,
    DocumentAnswer,
    EmbeddingsAnswer,
    ErrorAnswer,
    Health,
    InfoAnswer,
    ModelAnswer,
    ModelList,
    TokenizeAnswer,
    TokenStates,
    VectorList,
)

TEXT = "A text of some words, to be embedded and looked at."


@pytest.mark.parametrize(
    ("path", "body", "answer"),
    [
        ("/v1/embeddings", {"input": [TEXT, TEXT]}, EmbeddingsAnswer),
        ("/v1/embeddings", {"input": TEXT, "encoding_format": "base64"}, EmbeddingsAnswer),
        ("/v1/documents", {"text": TEXT}, DocumentAnswer),
        ("/v1/documents", {"text": TEXT, "chunking": {"type": "fixed"}}, DocumentAnswer),
        ("/v1/tokenize", {"text": TEXT}, TokenizeAnswer),
        ("/v1/diagnostics", {"text": TEXT}, DiagnosticsAnswer),
        ("/v1/benchmarks", {"lengths": [16], "repeats": 1}, BenchmarkAnswer),
        ("/v1/embeddings", {"input": []}, ErrorAnswer),
        ("/embed", {"inputs": TEXT}, VectorList),
        ("/embed_all", {"inputs": [TEXT, TEXT]}, TokenStates),
        ("/embed", {"inputs": []}, ErrorAnswer),
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
