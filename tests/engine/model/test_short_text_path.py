"""The short text path gives the same bits as the encoder layer by layer."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import torch

from engine.config import EngineConfig
from engine.model import linear
from engine.model.embedding_model import EmbeddingModel, load_model
from engine.model.encoder import short_text_path
from engine.model.linear import product_kinds
from tests.engine.model.readings import some_ids
from tests.engine.precisions import BFLOAT16, INT8_FORMS, needs_reduced_int8
from tests.engine.small_models import calibrated

if TYPE_CHECKING:
    from tests.conftest import WriteCheckpoint


FLOAT32 = pytest.param("float32")


def is_straight(model: EmbeddingModel) -> bool:
    return short_text_path(model.encoder.weights, model.encoder.attention) is not None


@pytest.mark.parametrize("dtype", [FLOAT32, BFLOAT16, *INT8_FORMS])
@pytest.mark.parametrize("kind", ["softmax", "block_diagonal", "lln_diag", "lln"])
@pytest.mark.parametrize("family", ["bert", "roberta", "distilbert"])
@torch.inference_mode()
def test_it_changes_no_bit(
    family: str, kind: str, dtype: str, write_checkpoint: WriteCheckpoint
) -> None:
    folder = write_checkpoint(family)
    model = calibrated(folder, block_size=64, num_sinks=(1, 1), dtype=dtype)
    encoder = model.with_attention(kind).encoder
    assert is_straight(model)
    for length in (1, 2, 3, 16, 33, 63, 64, 65, 90):
        ids = torch.from_numpy(some_ids(length)).long()
        *_, by_layer = encoder.walk(ids, [0, length])
        assert torch.equal(encoder(ids, [0, length]), by_layer), length


@torch.inference_mode()
def test_the_default_model(default_model: EmbeddingModel) -> None:
    for model in (default_model, default_model.with_attention("softmax")):
        assert is_straight(model)
        for length in (2, 5, 16, 128, 511, 512, 513):
            assert _has_the_same_bits(model, length), length


@torch.inference_mode()
def test_gelu_within_products_or_after_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which is faster depends on the CPU: this one is made to do both."""
    states = []
    for is_after in (False, True):
        monkeypatch.setattr(linear, "fuses_gelu_slowly", lambda is_after=is_after: is_after)
        model = load_model(config=EngineConfig(device="cpu", dtype="float32"))
        kinds = product_kinds(model.encoder.weights)
        assert any(kind.fused[0] == "gelu" for kind in kinds) != is_after
        assert is_straight(model)
        assert all(_has_the_same_bits(model, length) for length in (2, 16, 75, 513))
        states.append(model.encoder(torch.arange(2_000, 2_075), [0, 75]))
    within, after = states
    assert torch.allclose(within, after, atol=1e-5)


@pytest.mark.parametrize("dtype", [BFLOAT16, pytest.param("int8", marks=needs_reduced_int8)])
@torch.inference_mode()
def test_the_default_model_in_other_precisions(dtype: str) -> None:
    model = load_model(config=EngineConfig(device="cpu", dtype=dtype))
    assert all(_has_the_same_bits(model, length) for length in (2, 16, 75))


def _has_the_same_bits(model: EmbeddingModel, length: int) -> bool:
    ids = torch.arange(2_000, 2_000 + length)
    *_, by_layer = model.encoder.walk(ids, [0, length])
    return torch.equal(model.encoder(ids, [0, length]), by_layer)


@needs_reduced_int8
@torch.inference_mode()
def test_int8_hides_no_value_that_is_not_finite(write_checkpoint: WriteCheckpoint) -> None:
    encoder = load_model(
        str(write_checkpoint("bert")), config=EngineConfig(device="cpu", dtype="int8")
    ).encoder
    qkv = encoder.weights.layers[0].qkv
    assert qkv.bias is not None
    ids = torch.from_numpy(some_ids(9)).long()
    qkv.bias[-1] = torch.nan  # of a value, which reaches the states by attention alone
    *_, by_layer = encoder.walk(ids, [0, 9])
    assert not torch.isfinite(by_layer).any()
    assert not torch.isfinite(encoder(ids, [0, 9])).any()


def test_unsupported_texts_and_encoders_run_layer_by_layer(
    write_checkpoint: WriteCheckpoint,
) -> None:
    assert not is_straight(
        calibrated(write_checkpoint("modernbert"), block_size=64, num_sinks=(1, 1))
    )
    small = load_model(str(write_checkpoint("bert")), config=EngineConfig(device="cpu"))
    assert is_straight(small)
    weights, attention = small.encoder.weights, small.encoder.attention
    assert short_text_path(replace(weights, activation="silu"), attention) is None
    ids = torch.arange(5, 30)
    assert small.encoder(ids, [0, 25]).shape == (25, weights.width), "with gradients wanted"
