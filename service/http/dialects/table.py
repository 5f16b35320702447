"""The vendors whose requests this server understands, in the order in which they claim bodies."""

from __future__ import annotations

from collections.abc import Collection

from service.http.dialects import cohere, infinity, jina, ollama, sagemaker, vllm, voyage
from service.http.dialects.dialect import Dialect, Dialects
from service.http.dialects.shapes import with_detail

DIALECTS: tuple[Dialect, ...] = (
    voyage.DIALECT,
    jina.DIALECT,
    infinity.DIALECT,
    vllm.DIALECT,
    cohere.DIALECT,
    ollama.DIALECT,
    sagemaker.DIALECT,
)

_SHARED_SHAPES = {"/v1/embeddings": with_detail, "/v1/rerank": with_detail}
"""Clients of several vendors read errors of these paths, and a refused body does not say whose it
is: such an error has everyone's fields."""


def dialects_named(names: Collection[str]) -> Dialects:
    enabled = [dialect for dialect in DIALECTS if dialect.name in names]
    return Dialects(enabled, _SHARED_SHAPES if enabled else {})
