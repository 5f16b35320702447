"""int8 products against float64, for every family, and checkpoints that int8 cannot hold."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

from engine import Engine
from engine.config import EngineConfig
from engine.errors import CheckpointError
from engine.model.activations import activate
from engine.model.embedding_model import load_model
from engine.model.int8 import dequantised, multiplied, quantised, quantised_rows, smoothing_of
from engine.platform.device import REDUCED
from tests.engine.precisions import INT8_FORMS, needs_reduced_int8

if TYPE_CHECKING:
    from pathlib import Path

    from engine.model.weights import Activation
    from tests.conftest import WriteCheckpoint

pytestmark = needs_reduced_int8
INT8 = EngineConfig(device="cpu", dtype="int8")
forms = pytest.mark.parametrize("form", INT8_FORMS)
TEXTS = ["a cat", "the dog and the cat sat on the mat " * 8, "x"]


def _random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@torch.inference_mode()
@forms
@pytest.mark.parametrize(("rows", "num_in", "num_out"), [(1, 64, 63), (2, 61, 64), (500, 96, 33)])
def test_products_are_those_of_the_quantised_numbers(
    rows: int, num_in: int, num_out: int, form: str
) -> None:
    x, weight, bias = _random(rows, num_in), _random(num_out, num_in, seed=1), _random(num_out)
    x[0] *= 1e4  # a row's size is nobody else's matter
    layer = quantised(weight, bias, reduced=form == REDUCED)
    made = quantised_rows(x)
    near = made.rows[:, :num_in] * made.step.double() + made.least.double()
    assert ((near - x) / made.step).abs().max() < 0.51
    torch.testing.assert_close(made.step, (x.amax(1, keepdim=True) - made.least) / 255)
    expected = near @ dequantised(layer).double().T + bias
    error = (multiplied(x, layer) - expected).abs() / made.step
    assert error.max() < 1e-3 * num_in
    largest = weight.abs().max() * (2 if layer.reduced else 1)
    assert (dequantised(layer) - weight).abs().max() <= largest / 127 / 1.99


@torch.inference_mode()
@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh", "relu", "silu"])
def test_activations_use_all_eight_bits(activation: Activation) -> None:
    x = activate(_random(200, 96) * torch.logspace(-3, 3, 200)[:, None], activation)
    rows = quantised_rows(x).rows[:, :96]
    assert (rows.amin(1) == 0).all()
    assert (rows.amax(1) == 255).all()


@torch.inference_mode()
@forms
def test_every_row_has_the_same_bits_alone_and_among_others(form: str) -> None:
    x, weight = _random(300, 384), _random(70, 384, seed=1)
    layer = quantised(weight, _random(70), reduced=form == REDUCED)
    together = multiplied(x, layer)
    for start, end in ((0, 1), (7, 9), (100, 133), (299, 300)):
        assert torch.equal(multiplied(x[start:end], layer), together[start:end])


@torch.inference_mode()
def test_rows_of_zeros_and_rows_that_are_not_finite() -> None:
    layer = quantised(_random(16, 32), _random(16), reduced=True)
    x = torch.zeros(36, 32)
    x[1, 3], x[2, 3] = torch.inf, -torch.inf
    x[4:].fill_diagonal_(torch.nan)
    y = multiplied(x, layer)
    assert layer.bias is not None
    assert torch.equal(y[[0, 3]], layer.bias.expand(2, -1))
    assert not torch.isfinite(y[[1, 2, *range(4, 36)]]).any(), "it is found, not hidden"
    assert not torch.isfinite(multiplied(x, layer, hides_nan=True)[1:3]).any()


@torch.inference_mode()
def test_smoothing_saves_the_other_channels_from_an_outlier() -> None:
    x, weight = _random(200, 64), _random(64, 64, seed=1)
    x[:, 5] *= 100
    smoothing = smoothing_of(weight, x.abs().amax(0))
    errors = [
        (multiplied(x, quantised(weight, None, chosen, reduced=True)) - x @ weight.T).norm()
        for chosen in (None, smoothing)
    ]
    assert errors[1] < 0.3 * errors[0]
    assert torch.isfinite(smoothing_of(weight, torch.zeros(64))).all()


@forms
@pytest.mark.parametrize("family", ["bert", "roberta", "distilbert", "modernbert"])
def test_every_family(family: str, form: str, write_checkpoint: WriteCheckpoint) -> None:
    folder = str(write_checkpoint(family))
    with (
        Engine.load(folder, config=EngineConfig(device="cpu")) as wide,
        Engine.load(folder, config=EngineConfig(device="cpu", dtype=form)) as narrow,
    ):
        expected, found = wide.embed(TEXTS), narrow.embed(TEXTS)
        assert (expected * found).sum(1).min() > 0.99
        for text, vector in zip(TEXTS, found, strict=True):
            np.testing.assert_array_equal(narrow.embed([text])[0], vector)


@pytest.mark.parametrize(
    ("value", "code", "said"),
    [(np.nan, "wrong_tensor_values", "not finite"), (1e6, "int8_outliers", "would round 98%")],
)
def test_a_checkpoint_that_int8_cannot_hold(
    value: float, code: str, said: str, write_checkpoint: WriteCheckpoint
) -> None:
    folder, name = write_checkpoint("bert"), "encoder.layer.1.intermediate.dense.weight"
    _with_values(folder / "model.safetensors", name, value)
    with pytest.raises(CheckpointError, match=said) as refused:
        Engine.load(str(folder), config=INT8)
    assert (refused.value.code, refused.value.param) == (code, name)


def _with_values(path: Path, name: str, value: float) -> None:
    """Puts this value at the start of each row."""
    tensors = load_file(path)
    tensors[name][:, 0] = value
    save_file(tensors, path, metadata={"format": "pt"})


@pytest.mark.parametrize("family", ["bert", "modernbert"])
@forms
def test_word_vectors_take_half_the_bytes(
    family: str, form: str, write_checkpoint: WriteCheckpoint
) -> None:
    """States are no narrower for it, and float32 keeps every bit."""
    folder = str(write_checkpoint(family))
    wide = load_model(folder, config=EngineConfig(device="cpu")).encoder
    narrow = load_model(folder, config=EngineConfig(device="cpu", dtype=form)).encoder
    assert wide.weights.words.dtype == wide.weights.state_dtype == torch.float32
    assert narrow.weights.words.nbytes * 2 == wide.weights.words.nbytes
    ids = torch.arange(9)
    expected, found = (encoder.embed(ids, ids, 0) for encoder in (wide, narrow))
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, expected, rtol=2**-6, atol=2**-6)
