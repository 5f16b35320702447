"""A small model for evaluations."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from engine.config import EngineConfig
from engine.model.embedding_model import EmbeddingModel, load_model

if TYPE_CHECKING:
    from tests.conftest import WriteCheckpoint


@pytest.fixture
def model(write_checkpoint: WriteCheckpoint) -> EmbeddingModel:
    return load_model(str(write_checkpoint("bert")), config=EngineConfig(device="cpu"))
