"""Answers about the models and the server."""

from __future__ import annotations

from typing import Any, Literal

from service.http.schemas.responses.base import Answer, Described


class ModelAnswer(Answer):
    """OpenAI's four fields first."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    name: str
    family: str
    attention: list[str]
    dim: int
    num_layers: int
    num_heads: int
    max_tokens: int
    position_table: int
    pooling: str
    prompts: dict[str, str]
    revision: str
    calibration: str | None
    source: str
    device: str
    dtype: str
    int8_range: float
    chunk_context: str
    aliases: list[str]


class ModelList(Answer):
    object: Literal["list"]
    data: list[ModelAnswer]


class TeiPooling(Answer):
    pooling: str


class TeiModelType(Answer):
    embedding: TeiPooling


class RanksAnswer(Answer):
    """The processes that were to read long documents together, and those that can now."""

    asked: int
    present: int


class InfoAnswer(Described):
    """What runs here. The fields from `model_id` on are those of text-embeddings-inference, for the
    default model."""

    name: str
    version: str
    python: str
    libraries: dict[str, str]
    models: list[dict[str, Any]]
    limits: dict[str, Any]
    ranks: RanksAnswer
    model_id: str
    model_sha: str
    model_dtype: str
    served_model_name: str
    model_type: TeiModelType
    max_concurrent_requests: int
    max_input_length: int
    max_batch_tokens: int
    max_batch_requests: int
    max_client_batch_size: int
    auto_truncate: bool
    tokenization_workers: int
    sha: str | None
    docker_label: str | None


class Health(Answer):
    status: Literal["alive", "ready"]
    models: list[str] | None = None
    ranks: RanksAnswer | None = None
