"""The two models that ship, loaded once, the first layers of one, real text to read with them, and
a small teacher."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from pydoc_data.topics import topics
from typing import TYPE_CHECKING

import pytest
import torch

from engine.checkpoint.calibration import Calibration
from engine.config import EngineConfig
from engine.model.embedding_model import EmbeddingModel, load_model, load_models
from engine.training.calibrate import CalibrationPlan, calibrate
from engine.training.convert import built_in_texts
from engine.training.token_corpus import TokenCorpus

if TYPE_CHECKING:
    from tests.conftest import WriteCheckpoint

PUBLISHED = "sentence-transformers/all-MiniLM-L6-v2"


@pytest.fixture(scope="session")
def cpu_config() -> EngineConfig:
    return EngineConfig(device="cpu")


@pytest.fixture(scope="session")
def shipped_models(cpu_config: EngineConfig) -> dict[str, EmbeddingModel]:
    models = load_models(["default", PUBLISHED], config=cpu_config)
    return {model.name: model for model in models}


@pytest.fixture(scope="session")
def default_model(shipped_models: dict[str, EmbeddingModel]) -> EmbeddingModel:
    return shipped_models["default"]


@pytest.fixture(scope="session")
def published_model(shipped_models: dict[str, EmbeddingModel]) -> EmbeddingModel:
    return shipped_models[PUBLISHED]


@pytest.fixture(scope="session")
def shallow_model(
    shipped_models: dict[str, EmbeddingModel], tmp_path_factory: pytest.TempPathFactory
) -> EmbeddingModel:
    """The first two layers of the default model, for tests of what surrounds an encoder: its
    tokenizer, blocks and widths, at a third of the time.

    Of a single layer, nothing would be handed from one layer to the next.
    """
    whole = shipped_models["default"]
    return first_layers(whole, tmp_path_factory.mktemp("shallow") / "model", whole.config)


def first_layers(whole: EmbeddingModel, folder: Path, config: EngineConfig) -> EmbeddingModel:
    """The first two layers of a model, written to a folder and loaded from there."""
    shutil.copytree(whole.checkpoint.folder, folder, copy_function=os.symlink)
    described = json.loads((folder / "config.json").read_text()) | {"num_hidden_layers": 2}
    (folder / "config.json").unlink()
    (folder / "config.json").write_text(json.dumps(described))
    model = load_model(str(folder), attention="softmax", config=config)
    if whole.calibration is None:
        return model
    of_layers = ("alpha", "beta", "mix", "key_shift", "query_map", "key_map", "gate")
    first = {name: getattr(whole.calibration, name)[:2] for name in of_layers}
    return model.with_calibration(replace(whole.calibration, **first))


@pytest.fixture(scope="session")
def long_text() -> str:
    """Python's reference manual: real English of some 200,000 tokens."""
    return "\n\n".join(topics.values())


@pytest.fixture(scope="session")
def real_texts(long_text: str) -> list[str]:
    """500 passages of it, of 1 to some 480 tokens, most of them short."""
    words = long_text.split()
    lengths = [1 + int(239 * ((index * 37 % 500) / 500) ** 6) for index in range(500)]
    starts = [(index * 151) % (len(words) - 240) for index in range(500)]
    return [
        " ".join(words[start : start + length])
        for start, length in zip(starts, lengths, strict=True)
    ]


@pytest.fixture
def one_thread() -> Iterator[None]:
    """LAPACK on several threads crawls where other work takes the cores."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def teacher(write_checkpoint: WriteCheckpoint) -> EmbeddingModel:
    return load_model(str(write_checkpoint("bert")), config=EngineConfig(device="cpu"))


@pytest.fixture(scope="module")
def calibration(teacher: EmbeddingModel) -> Calibration:
    plan = CalibrationPlan(block_size=16, sample_tokens=48, num_samples=4)
    return calibrate(teacher, built_in_texts()[:20], plan)


@pytest.fixture(scope="module")
def corpus(teacher: EmbeddingModel) -> TokenCorpus:
    return TokenCorpus.of(built_in_texts()[:20], teacher.tokenizer)
