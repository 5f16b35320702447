"""Students of an evaluation, made of a model without training it."""

from __future__ import annotations

from dataclasses import replace

from engine.checkpoint.calibration import FILE_NAME
from engine.model.embedding_model import EmbeddingModel


def adapted(model: EmbeddingModel) -> EmbeddingModel:
    """As if it had been made by `lln adapt`, as far as training records go."""
    (model.checkpoint.folder / FILE_NAME).touch()
    return replace(model, info=replace(model.info, calibration="some"))


def named(model: EmbeddingModel, name: str) -> EmbeddingModel:
    return replace(model, info=replace(model.info, name=name))
