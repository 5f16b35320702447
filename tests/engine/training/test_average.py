"""The mean of models that were trained from one checkpoint."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch

from engine.checkpoint.calibration import (
    FILE_NAME,
    Calibration,
    read_calibration,
    write_calibration,
)
from engine.config import EngineConfig
from engine.errors import InvalidInput
from engine.model.embedding_model import load_model
from engine.model.weight_overrides import named_tensors
from engine.training.average import average_models
from engine.training.convert import copy_model
from engine.training.model_folder import read_record, with_earlier_records, write_record
from tests.engine.small_models import calibrated

if TYPE_CHECKING:
    from tests.conftest import WriteCheckpoint

CPU = EngineConfig(device="cpu")
NORM = "embedding_norm.bias"


@pytest.fixture
def checkpoint(write_checkpoint: WriteCheckpoint) -> Path:
    return write_checkpoint("bert")


@pytest.fixture
def calibration(checkpoint: Path) -> Calibration:
    model = calibrated(checkpoint, block_size=64, num_sinks=(1, 1))
    assert model.calibration is not None
    own = dict(named_tensors(model.parts.weights))
    return replace(model.calibration, adapted={NORM: own[NORM].half()})


def written(folder: Path, checkpoint: Path, calibration: Calibration, source: str) -> str:
    copy_model(checkpoint, folder)
    write_calibration(folder / FILE_NAME, calibration)
    parts = {"trained_on": f"{source} read", "held_out": f"{source} left out"}
    write_record(folder, {"sources": {source: parts}})
    return str(folder)


@pytest.fixture
def models(tmp_path: Path, checkpoint: Path, calibration: Calibration) -> list[str]:
    other = replace(
        calibration,
        alpha=calibration.alpha + 1,
        adapted={NORM: torch.full_like(calibration.adapted[NORM], 3)},
    )
    return [
        written(tmp_path / "one", checkpoint, calibration, "kernel"),
        written(tmp_path / "other", checkpoint, other, "python"),
    ]


def found_in(folder: Path, calibration: Calibration) -> Calibration:
    return read_calibration(folder / FILE_NAME, calibration.weights_sha256)


def test_every_number_is_the_mean(
    tmp_path: Path, models: list[str], calibration: Calibration
) -> None:
    average_models(models, tmp_path / "mean", config=CPU)
    found = found_in(tmp_path / "mean", calibration)
    torch.testing.assert_close(found.alpha, calibration.alpha + 0.5)
    torch.testing.assert_close(found.beta, calibration.beta)
    own = calibration.adapted[NORM]
    torch.testing.assert_close(found.adapted[NORM], ((own.double() + 3) / 2).half())
    assert found.adapted[NORM].dtype == torch.float16
    assert load_model(str(tmp_path / "mean"), config=CPU).calibration is not None


def test_shares_are_relative(tmp_path: Path, models: list[str], calibration: Calibration) -> None:
    average_models(models, tmp_path / "mean", [30, 10], config=CPU)
    torch.testing.assert_close(
        found_in(tmp_path / "mean", calibration).alpha, calibration.alpha + 0.25
    )


def test_what_each_was_trained_on_is_known(tmp_path: Path, models: list[str]) -> None:
    average_models(models, tmp_path / "mean", [3, 1], config=CPU)
    record = read_record(load_model(str(tmp_path / "mean"), config=CPU))
    assert record is not None
    assert [part["share"] for part in record["averaged"]] == [0.75, 0.25]
    sources = [one["sources"] for one in with_earlier_records(record) if one is not None]
    assert [list(one) for one in sources] == [[], ["kernel"], ["python"]]


def test_a_mean_of_a_mean_knows_them_all(tmp_path: Path, models: list[str]) -> None:
    average_models(models, tmp_path / "mean", config=CPU)
    (tmp_path / "one" / "data.json").unlink()
    average_models([models[0], str(tmp_path / "mean")], tmp_path / "again", config=CPU)
    record = read_record(load_model(str(tmp_path / "again"), config=CPU))
    found = list(with_earlier_records(record))
    assert [one and list(one["sources"]) for one in found] == [
        [],
        None,  # the one without a record
        [],
        ["kernel"],
        ["python"],
    ]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda one: replace(one, block_size=128), "block_size is 64 in one and 128"),
        (lambda one: replace(one, gate=one.key_shift), "gate is None in one and"),
        (lambda one: replace(one, adapted={}), "embedding_norm.bias is .* in one and None"),
    ],
)
def test_models_that_differ_are_refused(
    tmp_path: Path, checkpoint: Path, calibration: Calibration, change: object, said: str
) -> None:
    assert callable(change)
    one = written(tmp_path / "one", checkpoint, calibration, "kernel")
    other = written(tmp_path / "other", checkpoint, change(calibration), "kernel")
    with pytest.raises(InvalidInput, match=said) as caught:
        average_models([one, other], tmp_path / "mean", config=CPU)
    assert (caught.value.code, caught.value.param) == ("models_differ", "models")
    assert not (tmp_path / "mean").exists()


def test_wrong_requests_are_refused(tmp_path: Path, models: list[str], checkpoint: Path) -> None:
    out = tmp_path / "mean"
    for given, shares, said in (
        (models[:1], None, "at least 2 models, got 1"),
        (models, [1.0], "1 shares for 2 models"),
        (models, [1.0, 0.0], "above 0, got 0"),
        (models, [1.0, float("nan")], "above 0, got nan"),
        ([models[0], str(checkpoint)], None, "never adapted"),
    ):
        with pytest.raises(InvalidInput, match=said):
            average_models(given, out, shares, config=CPU)
        assert not out.exists()
