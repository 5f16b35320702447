"""Heads pruned in training: what the rules see, how many heads go, and the same bytes twice."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Generator, Tensor

from engine.errors import InsufficientMemory
from engine.experiments.contest import ContestPlan, run_contest
from engine.experiments.contests.pruning import RULES, PruningContest, PruningPlan
from engine.experiments.contests.tokens import TokenContest
from engine.experiments.encoder import SmallEncoder
from engine.experiments.head_scores import (
    gate_fisher,
    magnitude,
    mean_distance,
    pattern_fisher,
)
from engine.experiments.tasks.task import Recall
from engine.experiments.training import TrainingBudget
from engine.experiments.trials import Trial
from tests.engine.experiments.toy_contests import assert_same_bytes_twice

TRAINED = TokenContest(
    task=Recall(length=32, keys=3, values=3),
    layers=2,
    width=48,
    heads=3,
    block_size=16,
    budget=TrainingBudget(steps=4, batch=3, warm_up=1, weight_decay=0.01, clip=1.0, examples=5),
    rates=(),
    tuning_seeds=0,
)
CONTEST = PruningContest(
    trained=TRAINED,
    plan=PruningPlan(at=0.5, kept=1, examples=3, texts=2),
    rates=(1e-2,),
    tuning_seeds=1,
)


@pytest.fixture
def model() -> SmallEncoder:
    torch.manual_seed(0)
    return TRAINED.model("softmax")


@pytest.fixture
def texts() -> Tensor:
    return TRAINED.texts(2, Generator().manual_seed(0))


def test_the_same_bytes_twice(tmp_path: Path) -> None:
    assert_same_bytes_twice(CONTEST, tmp_path)


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_keeps_as_many_heads_of_every_layer(rule: str, model: SmallEncoder) -> None:
    CONTEST.prune(model, rule, seed=0)
    for layer in model.each_layer():
        assert layer.gates is not None
        assert sorted(layer.gates.tolist()) == [0, 0, 1]


def test_a_pruned_head_neither_acts_nor_learns(model: SmallEncoder, texts: Tensor) -> None:
    model.set_gates([torch.tensor([1.0, 0.0, 1.0]), torch.ones(3)])
    first = next(iter(model.each_layer()))
    before = model(texts)
    with torch.no_grad():
        first.to_qkv.weight.view(3, 3, 16, -1)[:, 1] += 1
    torch.testing.assert_close(model(texts), before)
    model(texts).square().sum().backward()
    gradient = first.to_qkv.weight.grad
    assert gradient is not None
    by_head = gradient.view(3, 3, 16, -1).abs().amax((0, 2, 3))
    assert by_head[1] == 0
    assert by_head[0] > 0


def test_trials_do_not_differ_before_they_are_pruned() -> None:
    """And the unpruned ones are the contest's own training."""
    late = replace(CONTEST, plan=replace(CONTEST.plan, at=1.0))
    trial = Trial(method="unpruned", rate=1e-2, seed=3, part="test")
    whole = late.measure(trial)
    assert whole["accuracy"] == TRAINED.measure(replace(trial, method="softmax"))["accuracy"]
    pruned = late.measure(replace(trial, method="random"))
    assert pruned["spread_of_scales_at_start"] == whole["spread_of_scales_at_start"]


@torch.no_grad()
def test_patterns_give_fisher_information_and_distance(model: SmallEncoder, texts: Tensor) -> None:
    (first, *_), (text, *_) = model.heads_of(texts[:1]), texts
    attention, q, k = first
    row = attention.matrix(q, k)[1, 5]
    fisher = torch.diag(row) - torch.outer(row, row)
    rows = attention.matrix(q, k)[1]
    assert float(fisher.trace()) == pytest.approx(float(1 - row.square().sum()))
    traces = [float((torch.diag(one) - torch.outer(one, one)).trace()) for one in rows]
    assert float(pattern_fisher(model, [text])[0, 1]) == pytest.approx(sum(traces) / len(traces))
    far = [
        sum(abs(at - other) * float(one[other]) for other in range(len(one)))
        for at, one in enumerate(rows)
    ]
    assert float(mean_distance(model, [text])[0, 1]) == pytest.approx(sum(far) / len(far))


def test_the_magnitude_is_that_of_a_heads_weights(model: SmallEncoder) -> None:
    before = magnitude(model)
    second = list(model.each_layer())[1]
    with torch.no_grad():
        second.from_heads.weight[:, 32:] += 1
    moved = magnitude(model) != before
    assert moved.tolist() == [[False] * 3, [False, False, True]]


def test_a_gate_that_does_nothing_has_no_fisher_information(model: SmallEncoder) -> None:
    first = next(iter(model.each_layer()))
    with torch.no_grad():
        first.from_heads.weight[:, :16] = 0
    generator = Generator().manual_seed(0)
    found = gate_fisher(model, lambda: TRAINED.next_loss(model, 1, generator), 3)
    assert found.shape == (2, 3)
    assert found[0, 0] == 0
    assert (found.flatten()[1:] > 0).all()


def test_too_little_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.experiments.training_memory.free_bytes", lambda device: 1000)
    plan = ContestPlan(contest=CONTEST, methods=CONTEST.methods, seeds=2, threads=1)
    with pytest.raises(InsufficientMemory, match="recall needs about"):
        run_contest(plan, tmp_path / "out", {}, lambda *told: None)
