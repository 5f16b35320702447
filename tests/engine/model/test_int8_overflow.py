"""Checkpoints whose products could overflow in int8, where NaN would be hidden."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

from engine import Engine
from engine.config import EngineConfig
from engine.errors import CheckpointError

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import WriteCheckpoint

INT8 = EngineConfig(device="cpu", dtype="int8")
PRODUCT = "encoder.layer.1.intermediate.dense"


@pytest.fixture(autouse=True)
def _some_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Models are only loaded here, which needs no instructions for int8, so any CPU may try."""
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_vnni": True})


def _write(write_checkpoint: WriteCheckpoint, size: float) -> Path:
    """A checkpoint in which one unit of a layer is so large that it can overflow."""
    folder = write_checkpoint("bert")
    tensors = load_file(folder / "model.safetensors")
    for name in ("weight", "bias"):
        tensors[f"{PRODUCT}.{name}"][0] = -size
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def test_products_that_may_overflow_are_refused(write_checkpoint: WriteCheckpoint) -> None:
    folder = str(_write(write_checkpoint, 4e36))
    with pytest.raises(CheckpointError, match="layer 1 cannot be used in int8") as refused:
        Engine.load(folder, config=INT8)
    error = refused.value
    assert (error.code, error.param) == ("int8_overflow", "layers.1.ffn_in")
    assert isinstance(error.limit, float)
    assert isinstance(error.actual, float)
    assert error.actual > error.limit


def test_large_products_that_cannot_overflow_are_not(write_checkpoint: WriteCheckpoint) -> None:
    folder = _write(write_checkpoint, 1e10)
    with Engine.load(str(folder), config=INT8) as engine:
        assert np.isfinite(engine.embed(["a cat"])).all()
