"""Nothing that is no finite number leaves a diagnosis."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from engine.analysis.finite import keep_finite, one_each
from engine.config import EngineConfig
from engine.diagnostics import HEAD_INSTRUMENTS, Quantity, Reading
from engine.diagnostics.head_group import HeadGroup
from engine.diagnostics.head_readings import TimedReading
from engine.engine import Engine
from engine.errors import DeviceFailure
from engine.model.embedding_model import EmbeddingModel
from engine.steps import Steps

if TYPE_CHECKING:
    from tests.conftest import WriteCheckpoint


def reading(value: float, error: float | None = None, **beside: float) -> TimedReading:
    quantities = {
        name: Quantity(values=np.array([other]), unit="nats") for name, other in beside.items()
    }
    errors = None if error is None else np.array([error])
    return TimedReading(
        Reading(
            values=np.array([value]), error=errors, method="exact", unit="nats", beside=quantities
        ),
        0.0,
    )


def test_only_what_is_finite_is_kept() -> None:
    found = {
        "whole": reading(1.0, 0.1, other=2.0),
        "value": reading(np.nan),
        "error": reading(1.0, np.inf),
        "beside": reading(1.0, 0.1, one=np.inf, other=2.0),
    }
    kept, left_out = keep_finite(found, 3)
    assert list(kept) == ["whole", "beside"]
    assert kept["whole"] is found["whole"]
    assert list(kept["beside"].reading.beside) == ["other"]
    reasons = {one.instrument: one.reason for one in left_out}
    assert set(reasons) == {"value", "error", "beside"}
    assert all("layer 3" in reason for reason in reasons.values())
    assert "one" in reasons["beside"]
    assert len(one_each([*left_out, *left_out])) == len(left_out)


def test_a_diagnosis_leaves_it_out_and_says_so(
    default_model: EmbeddingModel, cpu_config: EngineConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def measure(heads: HeadGroup) -> Steps[Reading]:
        yield
        values = np.full(heads.num_heads, np.nan)
        return Reading(values=values, error=None, method="broken", unit="score^2")

    broken = HEAD_INSTRUMENTS["energy"]
    monkeypatch.setitem(broken.__dict__, "measure", measure)
    with Engine(default_model, config=cpu_config) as engine:
        found = engine.diagnose("a few words", layers=[0, 1], instruments=["energy", "entropy"])
    assert [one.instrument for one in found.instruments] == ["entropy"]
    assert [one.instrument for one in found.left_out] == ["energy"]
    assert "layer 0" in found.left_out[0].reason
    assert "layer 1" in found.left_out[0].reason


def test_states_that_overflow_are_not_the_callers_fault(write_checkpoint: WriteCheckpoint) -> None:
    """As for an embedding of the same text."""
    folder = write_checkpoint("bert")
    tensors = load_file(folder / "model.safetensors")
    for name in ("weight", "bias"):
        tensors[f"encoder.layer.0.intermediate.dense.{name}"][:] = 3e38
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    calls: list[Callable[[Engine], object]] = [
        lambda engine: engine.embed(["a cat"]),
        lambda engine: engine.diagnose("a cat", layers=[1], instruments=["entropy"]),
    ]
    with Engine.load(str(folder), config=EngineConfig(device="cpu")) as engine:
        for call in calls:
            with pytest.raises(DeviceFailure) as caught:
                call(engine)
            assert caught.value.code == "non_finite_output"
