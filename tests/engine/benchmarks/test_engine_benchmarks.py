"""The engine's benchmarks: forward passes and training steps with every attention, and quality."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from engine.benchmarks.encoder import (
    ATTENTIONS,
    EncoderPlan,
    EncoderRow,
    Subject,
    TrainableLayers,
    encoder_rows,
)
from engine.benchmarks.quality import LEAST_TOKENS, QualityPlan, quality_rows
from engine.errors import InvalidInput
from engine.model.embedding_model import EmbeddingModel
from engine.model.encoder import Encoder
from engine.model.weight_overrides import dense
from engine.platform.memory import PeakMemory


def rows_of(model: EmbeddingModel, *attentions: str, training: bool = False) -> list[EncoderRow]:
    plan = EncoderPlan.checked([20, 90], attentions, 1, model, training=training)
    return [row for rows in encoder_rows(plan) for row in rows]


def some_ids(count: int) -> Tensor:
    return torch.randint(0, 30_000, (count,), generator=torch.Generator().manual_seed(0))


def test_every_attention_encodes(shallow_model: EmbeddingModel) -> None:
    rows = rows_of(shallow_model, *ATTENTIONS)
    assert [row.attention for row in rows] == [*ATTENTIONS, *ATTENTIONS]
    assert {row.tokens for row in rows} == {20, 90}
    assert all(row.seconds > 0 and row.work == "forward" for row in rows)


@pytest.mark.parametrize(("length", "limit"), [(1, LEAST_TOKENS), (10**6, None)])
def test_quality_states_the_limit(
    default_model: EmbeddingModel, length: int, limit: int | None
) -> None:
    assert default_model.tokenizer.num_special + 1 == LEAST_TOKENS
    plan = QualityPlan(model=default_model, lengths=(length,), attentions=("lln_diag",))
    with pytest.raises(InvalidInput) as caught:
        next(quality_rows(plan))
    assert isinstance(caught.value.limit, int)
    assert caught.value.limit == limit or LEAST_TOKENS < caught.value.limit < length


@pytest.mark.long
def test_training_rows(shallow_model: EmbeddingModel) -> None:
    rows = rows_of(shallow_model, "softmax", "nystromformer", "lln", "lln_diag", training=True)
    assert len(rows) == 8
    assert all(row.seconds > 0 and row.work == "training" for row in rows)


def test_there_is_a_pause_after_every_layer(default_model: EmbeddingModel) -> None:
    """Other work runs in the pauses: six layers forward, six backward, twice with the warm-up."""
    for training, stops in ((False, 12), (True, 24)):
        plan = EncoderPlan.checked([32], ["softmax"], 1, default_model, training=training)
        assert sum(not rows for rows in encoder_rows(plan)) == stops


def test_a_training_step_has_the_gradients_of_one_backward_pass(
    published_model: EmbeddingModel,
) -> None:
    """Compares layer by layer with one backward pass through all layers."""
    encoder = published_model.encoder
    ids, bounds = some_ids(70), [0, 50, 70]
    layers = TrainableLayers(encoder, encoder.attention, rate=1.0)
    whole = {name: t.detach().clone().requires_grad_() for name, t in layers.tensors.items()}
    with torch.enable_grad():
        states = Encoder(dense(encoder.weights, whole), encoder.attention)(ids, bounds)
        states.square().mean().backward()  # type: ignore[no-untyped-call]
    for _ in layers.step(ids, bounds):
        pass
    assert len(whole) == 6 * 12
    for name, start in whole.items():
        moved = start.detach() - layers.tensors[name].detach()
        torch.testing.assert_close(moved, start.grad, rtol=1e-3, atol=1e-6)


def test_training_leaves_the_model_unchanged(published_model: EmbeddingModel) -> None:
    encoder = published_model.encoder
    before = encoder(some_ids(30), [0, 30])
    for _ in TrainableLayers(encoder, encoder.attention).step(some_ids(30), [0, 30]):
        pass
    assert torch.equal(encoder(some_ids(30), [0, 30]), before)


def test_a_kind_runs_the_models_own_path(default_model: EmbeddingModel) -> None:
    subject = Subject.of(default_model, "softmax")
    assert subject.model.info.attention == ("softmax",) * 6
    assert subject.attend == subject.model.encoder.attention


@pytest.mark.parametrize(
    ("lengths", "attentions", "repeats", "param"),
    [
        ([0], ["softmax"], 1, "lengths"),
        ([10**9], ["elu"], 1, "lengths"),
        ([16], ["reformer"], 1, "attentions"),
        ([16], [], 1, "lengths"),
        ([16], ["elu"], 0, "repeats"),
    ],
)
def test_bad_plan(
    default_model: EmbeddingModel,
    lengths: list[int],
    attentions: list[str],
    repeats: int,
    param: str,
) -> None:
    with pytest.raises(InvalidInput) as caught:
        EncoderPlan.checked(lengths, attentions, repeats, default_model)
    assert caught.value.param == param


def test_training_is_bounded(default_model: EmbeddingModel) -> None:
    with pytest.raises(InvalidInput, match="1 to 32768, got 65536"):
        EncoderPlan.checked([65_536], ["lln"], 1, default_model, training=True)


def test_peak_memory_sees_what_is_freed_again() -> None:
    memory = PeakMemory(torch.device("cpu"))
    if memory.bytes is None:
        pytest.skip("this machine does not tell")
    with memory.watching():
        float(torch.ones(50 * 2**20).sum())  # 200 MB of float32
    with memory.watching():
        pass
    assert 190e6 < memory.bytes < 260e6


@pytest.mark.long
def test_training_takes_more_memory_than_encoding(default_model: EmbeddingModel) -> None:
    plan = EncoderPlan.checked([1024], ["lln_diag"], 1, default_model)
    forward, training = (
        next(row for rows in encoder_rows(one) for row in rows)
        for one in (plan, replace(plan, training=True))
    )
    if forward.peak_bytes is None or training.peak_bytes is None:
        pytest.skip("this machine does not tell")
    assert training.peak_bytes > 2 * forward.peak_bytes
