"""The file of a calibration, while a model made of it is in use."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path

import torch
from torch import Tensor

from engine.checkpoint.calibration import (
    FILE_NAME,
    Calibration,
    read_calibration,
    shipped_calibration,
)
from engine.checkpoint.registry import PUBLISHED_MODELS

MINILM = PUBLISHED_MODELS[0].sha256


def tensors_of(calibration: Calibration) -> dict[str, Tensor]:
    own = {field.name: getattr(calibration, field.name) for field in fields(calibration)}
    every = {**own, **calibration.adapted}
    return {name: value for name, value in every.items() if isinstance(value, Tensor)}


def test_writing_over_the_file_changes_nothing_that_was_read(tmp_path: Path) -> None:
    path = tmp_path / FILE_NAME
    path.write_bytes(shipped_calibration(MINILM, "documents").read_bytes())
    calibration = read_calibration(path, MINILM)
    before = {name: tensor.clone() for name, tensor in tensors_of(calibration).items()}
    assert {"alpha", "query_map"} < before.keys()
    assert len(before) > len(fields(calibration)), "it has adapted tensors"
    with path.open("r+b") as file:
        header = 8 + int.from_bytes(file.read(8), "little")
        assert json.loads(path.read_bytes()[8:header])["alpha"]
        file.seek(header)
        file.write(bytes(path.stat().st_size - header))
    for name, tensor in tensors_of(calibration).items():
        assert torch.equal(tensor, before[name]), name
