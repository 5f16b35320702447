"""ModernBERT: served as published, and converted to LLN+Diag."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import pytest

from engine import Engine
from engine.config import EngineConfig
from engine.errors import CheckpointError, InvalidInput
from engine.training.calibrate import CalibrationPlan
from engine.training.convert import adapt_model

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import WriteCheckpoint

CPU = EngineConfig(device="cpu")
TEXTS = ["a cat", "the dog and the cat sat on the mat " * 8, "x"]


def test_vectors_equal_those_of_sentence_transformers(write_checkpoint: WriteCheckpoint) -> None:
    from sentence_transformers import SentenceTransformer

    folder = write_checkpoint("modernbert")
    with Engine.load(str(folder), config=CPU) as engine:
        found = engine.embed(TEXTS)
        assert engine.info.attention == ("softmax", "sliding_window", "sliding_window", "softmax")
    expected = SentenceTransformer(str(folder), device="cpu").encode(TEXTS)
    assert np.abs(found - expected).max() < 2e-5


def test_conversion_keeps_local_layers(write_checkpoint: WriteCheckpoint, tmp_path: Path) -> None:
    folder = write_checkpoint("modernbert")
    plan = CalibrationPlan(block_size=16, sample_tokens=64, num_samples=2, positions="reset")
    adapt_model(str(folder), tmp_path / "out", ["the cat sat on the mat. " * 400], plan, config=CPU)
    with Engine.load(str(tmp_path / "out"), config=CPU) as engine:
        kinds = ("lln_diag", "sliding_window", "sliding_window", "lln_diag")
        assert engine.info.attention == kinds
        vector = engine.embed(["the cat sat on the mat " * 60])[0]
        assert np.linalg.norm(vector) == pytest.approx(1, abs=1e-5)
        assert engine.diagnose("the cat sat").layers == (0, 3)
        with pytest.raises(InvalidInput, match=r"layer 1 of .* sliding window"):
            engine.diagnose("the cat sat", layers=[1])


def test_a_model_of_local_layers_alone_has_nothing_to_diagnose(
    write_checkpoint: WriteCheckpoint,
) -> None:
    folder = write_checkpoint("modernbert")
    config = json.loads((folder / "config.json").read_text())
    layers = ["sliding_attention"] * config["num_hidden_layers"]
    (folder / "config.json").write_text(json.dumps(config | {"layer_types": layers}))
    with Engine.load(str(folder), config=CPU) as engine:
        assert set(engine.info.attention) == {"sliding_window"}
        with pytest.raises(InvalidInput, match=r"all 4 layers of .* sliding window") as caught:
            engine.diagnose("the cat sat")
    assert caught.value.code == "invalid_layers"


@pytest.mark.parametrize(
    "change",
    [
        {"global_rope_theta": -1.0},
        {"rope_parameters": {"full_attention": {"rope_type": "yarn", "rope_theta": 1e4}}},
        {"hidden_activation": "mish"},
        {"norm_eps": None},
        {"layer_types": ["dense_attention"] * 4},
    ],
    ids=lambda change: next(iter(change)),
)
def test_unsupported_configurations(
    change: dict[str, object], write_checkpoint: WriteCheckpoint
) -> None:
    folder = write_checkpoint("modernbert")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | change))
    with pytest.raises(CheckpointError) as caught:
        Engine.load(str(folder), config=CPU)
    assert caught.value.code == "invalid_config"


def test_a_window_that_no_layer_uses_is_not_read(write_checkpoint: WriteCheckpoint) -> None:
    folder = write_checkpoint("modernbert")
    config = json.loads((folder / "config.json").read_text())
    every = config | {"layer_types": ["full_attention"] * 4, "local_attention": None}
    (folder / "config.json").write_text(json.dumps(every))
    with Engine.load(str(folder), config=CPU) as engine:
        assert engine.info.attention == ("softmax",) * 4
    (folder / "config.json").write_text(json.dumps(config | {"local_attention": None}))
    with pytest.raises(CheckpointError, match="local_attention must be"):
        Engine.load(str(folder), config=CPU)


def test_newer_names_of_the_configuration(write_checkpoint: WriteCheckpoint) -> None:
    folder = write_checkpoint("modernbert")
    config = json.loads((folder / "config.json").read_text())
    with Engine.load(str(folder), config=CPU) as engine:
        before = engine.embed(TEXTS)
    kinds = ["full_attention", "sliding_attention", "sliding_attention", "full_attention"]
    rope = {
        "full_attention": {"rope_type": "default", "rope_theta": config.pop("global_rope_theta")},
        "sliding_attention": {"rope_type": "default", "rope_theta": config.pop("local_rope_theta")},
    }
    newer = config | {"layer_types": kinds, "rope_parameters": rope}
    (folder / "config.json").write_text(json.dumps(newer))
    with Engine.load(str(folder), config=CPU) as engine:
        assert np.array_equal(engine.embed(TEXTS), before)
