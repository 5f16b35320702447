"""Converting a softmax checkpoint, and reading and writing its calibration file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from engine.checkpoint.block_size import LongBlock
from engine.checkpoint.calibration import (
    FILE_NAME,
    Calibration,
    read_calibration,
    write_calibration,
)
from engine.config import EngineConfig
from engine.errors import CheckpointError, InvalidInput
from engine.model.embedding_model import EmbeddingModel, load_model
from engine.training.calibrate import CalibrationPlan, calibrate, packed_vectors, sample_windows
from engine.training.convert import adapt_model, built_in_texts, read_texts

if TYPE_CHECKING:
    from tests.conftest import WriteCheckpoint

CPU = EngineConfig(device="cpu")
SMALL_PLAN = CalibrationPlan(block_size=16, sample_tokens=64, num_samples=4)


def a_calibration(**changes: object) -> Calibration:
    layer_heads = torch.ones(2, 4)
    calibration = Calibration(
        alpha=layer_heads,
        beta=layer_heads,
        mix=layer_heads * 0.1,
        key_shift=torch.zeros(2, 4, 16),
        block_size=64,
        num_sinks=(1, 1),
        weights_sha256="abc",
    )
    return replace(calibration, **changes)  # type: ignore[arg-type]


def test_calibration_round_trip(tmp_path: Path) -> None:
    write_calibration(tmp_path / FILE_NAME, a_calibration())
    found = read_calibration(tmp_path / FILE_NAME, "abc")
    assert found.sha256 == a_calibration().sha256
    assert (found.block_size, found.num_sinks) == (64, (1, 1))
    assert found.long_block is None
    assert found.pooling_slope == 0
    assert a_calibration(block_size=128).sha256 != found.sha256


def test_file_permissions_are_the_default_ones(tmp_path: Path) -> None:
    write_calibration(tmp_path / FILE_NAME, a_calibration())
    (tmp_path / "other").touch()
    modes = {file.stat().st_mode for file in tmp_path.iterdir()}
    assert len(modes) == 1


def test_long_block_round_trip(tmp_path: Path) -> None:
    written = a_calibration(long_block=LongBlock(beyond=100, size=32))
    write_calibration(tmp_path / FILE_NAME, written)
    found = read_calibration(tmp_path / FILE_NAME, "abc")
    assert found.long_block == LongBlock(beyond=100, size=32)
    assert found.sha256 == written.sha256 != a_calibration().sha256


def test_pooling_slope_round_trip(tmp_path: Path) -> None:
    written = a_calibration(pooling_slope=0.25)
    write_calibration(tmp_path / FILE_NAME, written)
    found = read_calibration(tmp_path / FILE_NAME, "abc")
    assert found.pooling_slope == 0.25
    assert found.sha256 == written.sha256 != a_calibration().sha256


@pytest.mark.parametrize(
    ("changes", "sha256", "code"),
    [
        ({}, "other", "calibration_mismatch"),
        ({"mix": torch.ones(2, 3)}, "abc", "invalid_calibration"),
        ({"mix": torch.full((2, 4), 1.01)}, "abc", "invalid_calibration"),
        ({"mix": torch.full((2, 4), -0.01)}, "abc", "invalid_calibration"),
        ({"alpha": torch.full((2, 4), float("nan"))}, "abc", "invalid_calibration"),
        ({"key_shift": torch.zeros(2, 4)}, "abc", "invalid_calibration"),
    ],
)
def test_unusable_calibrations(
    changes: dict[str, object], sha256: str, code: str, tmp_path: Path
) -> None:
    write_calibration(tmp_path / FILE_NAME, a_calibration(**changes))
    with pytest.raises(CheckpointError) as caught:
        read_calibration(tmp_path / FILE_NAME, sha256)
    assert caught.value.code == code


def test_a_damaged_file(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_bytes(b"not safetensors")
    with pytest.raises(CheckpointError, match=FILE_NAME):
        read_calibration(tmp_path / FILE_NAME, "abc")


@pytest.mark.parametrize(
    "settings",
    [
        None,
        "{nope",
        "[]",
        "[" * 100_000,
        '{"block_size": 64}',
        '{"block_size": "64", "num_sinks": [1, 1]}',
        '{"block_size": true, "num_sinks": [1, 1]}',
        '{"block_size": 64, "num_sinks": 3}',
        '{"block_size": 64, "num_sinks": [1]}',
        '{"block_size": 64, "num_sinks": [1, 0.5]}',
        '{"block_size": 64, "num_sinks": [-1, 1]}',
        '{"block_size": 17, "num_sinks": [1, 1]}',
        '{"block_size": 0, "num_sinks": [1, 1]}',
        '{"block_size": 64, "num_sinks": [1, 1], "positions": []}',
        '{"block_size": 64, "num_sinks": [1, 1], "long_block": 256}',
        '{"block_size": 64, "num_sinks": [1, 1], "long_block": {"size": 32}}',
        '{"block_size": 64, "num_sinks": [1, 1], "long_block": {"beyond": 90.5, "size": 32}}',
        '{"block_size": 64, "num_sinks": [1, 1], "long_block": {"beyond": 99, "size": 64}}',
        '{"block_size": 64, "num_sinks": [1, 1], "long_block": {"beyond": 63, "size": 32}}',
        '{"block_size": 64, "num_sinks": [1, 1], "long_block": {"beyond": 99, "size": 20}}',
        '{"block_size": 64, "num_sinks": [1, 1], "rise": "0.4"}',
        '{"block_size": 64, "num_sinks": [1, 1], "rise": -0.1}',
        '{"block_size": 64, "num_sinks": [1, 1], "rise": 1.5}',
        '{"block_size": 64, "num_sinks": [1, 1], "rise": NaN}',
    ],
)
def test_damaged_settings(settings: str | None, tmp_path: Path) -> None:
    path = tmp_path / FILE_NAME
    write_calibration(path, a_calibration())
    with safe_open(path, framework="pt") as file:
        metadata = file.metadata() | {"settings": settings}
    written = {name: value for name, value in metadata.items() if value is not None}
    save_file(load_file(path), path, metadata=written)
    with pytest.raises(CheckpointError, match=FILE_NAME) as caught:
        read_calibration(path, "abc")
    assert caught.value.code == "invalid_calibration"


def test_a_calibration_of_other_weights_is_replaced_as_the_error_says(
    write_checkpoint: WriteCheckpoint, tmp_path: Path
) -> None:
    folder = write_checkpoint("bert")
    write_calibration(folder / FILE_NAME, a_calibration())
    with pytest.raises(CheckpointError, match="calibrate again with lln adapt") as caught:
        load_model(str(folder), config=CPU)
    assert caught.value.code == "calibration_mismatch"
    made = adapt_model(
        str(folder), tmp_path / "made", built_in_texts()[:20], SMALL_PLAN, config=CPU
    )
    assert load_model(str(made.folder), config=CPU).info.calibration == made.calibration


@pytest.mark.parametrize("family", ["bert", "roberta", "distilbert"])
def test_converting_a_folder(
    family: str, write_checkpoint: WriteCheckpoint, tmp_path: Path
) -> None:
    folder = write_checkpoint(family)
    made = adapt_model(
        str(folder), tmp_path / "made", built_in_texts()[:20], SMALL_PLAN, config=CPU
    )
    assert 0.5 < made.least_cosine <= made.mean_cosine <= 1.0001
    student = load_model(str(made.folder), config=CPU)
    assert student.info.attention == ("lln_diag", "lln_diag")
    assert student.info.calibration == made.calibration
    assert load_model(str(folder), config=CPU).info.attention == ("softmax", "softmax")


def test_a_folder_without_calibration_says_how_to_make_one(
    write_checkpoint: WriteCheckpoint,
) -> None:
    with pytest.raises(CheckpointError, match="lln adapt"):
        load_model(str(write_checkpoint("bert")), attention="lln_diag", config=CPU)


def test_a_folder_in_use_is_not_overwritten(
    write_checkpoint: WriteCheckpoint, tmp_path: Path
) -> None:
    (tmp_path / "a file").touch()
    with pytest.raises(InvalidInput, match="not empty"):
        adapt_model(str(write_checkpoint("bert")), tmp_path, built_in_texts(), SMALL_PLAN)


def test_too_little_text_and_windows_that_do_not_fit(
    write_checkpoint: WriteCheckpoint, tmp_path: Path
) -> None:
    folder = str(write_checkpoint("bert"))
    with pytest.raises(InvalidInput, match="tokens of text"):
        adapt_model(folder, tmp_path / "a", ["too short"], SMALL_PLAN, config=CPU)
    plan = replace(SMALL_PLAN, sample_tokens=1024)
    with pytest.raises(InvalidInput, match="position table") as caught:
        adapt_model(folder, tmp_path / "b", built_in_texts(), plan, config=CPU)
    assert caught.value.actual == 1024


def test_blocks_as_long_as_the_sampled_windows(
    write_checkpoint: WriteCheckpoint, tmp_path: Path
) -> None:
    """There is nothing beyond such a block, so the numbers are those of smaller ones."""
    folder, texts = str(write_checkpoint("bert")), built_in_texts()[:20]
    shares = {}
    for block_size in (32, 64, 128):
        plan = replace(SMALL_PLAN, block_size=block_size)
        out = tmp_path / str(block_size)
        adapt_model(folder, out, texts, plan, config=CPU)
        student = load_model(str(out), config=CPU)
        assert student.calibration is not None
        assert student.calibration.block_size == block_size
        shares[block_size] = student.calibration.mix
    assert float(shares[32].max()) > 0
    assert torch.equal(shares[32], shares[64])
    assert torch.equal(shares[32], shares[128])


def test_reading_text_files(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("# one")
    (tmp_path / "b.bin").write_bytes(b"\x00\x01")
    (tmp_path / "c.txt").write_text("  \n")
    assert read_texts([tmp_path]) == ["# one"]


def fidelity(teacher: EmbeddingModel, student: EmbeddingModel, *windows: Any) -> torch.Tensor:
    """The cosine between both models' vectors of each window."""
    wanted, found = (packed_vectors(model, *windows) for model in (teacher, student))
    return torch.cosine_similarity(wanted, found)


def test_the_default_model_is_its_teacher_within_a_block(
    default_model: EmbeddingModel, published_model: EmbeddingModel
) -> None:
    plan = CalibrationPlan(num_samples=2)
    windows = sample_windows(published_model, built_in_texts()[:40], plan)
    assert fidelity(published_model, default_model, *windows).min() > 0.99999


@pytest.mark.long
def test_calibrated_lln_brings_a_model_nearer_to_its_teacher(
    published_model: EmbeddingModel,
) -> None:
    """Compared with the control: the same blocks and sinks without LLN."""
    plan, texts = (
        CalibrationPlan(num_samples=2, sample_tokens=256, block_size=128),
        built_in_texts()[:40],
    )
    calibrated = published_model.with_calibration(calibrate(published_model, texts, plan))
    windows = sample_windows(published_model, texts, plan)
    control = calibrated.with_attention("block_diagonal")
    with_lln, without = (
        fidelity(published_model, student, *windows) for student in (calibrated, control)
    )
    assert with_lln.mean() > 0.95
    assert with_lln.mean() > without.mean()
