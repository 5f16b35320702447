"""The tasks ask what they say, and training at toy size gives the same bytes twice."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Generator
from torch.nn import functional as F

from engine.errors import InsufficientMemory, InvalidInput
from engine.experiments.attention import ATTENTIONS, find_attention
from engine.experiments.contest import ContestPlan, run_contest
from engine.experiments.contests.tokens import TokenContest
from engine.experiments.encoder import count_parameters
from engine.experiments.tasks.task import UNASKED, Majority, Recall, accuracy_by_distance
from engine.experiments.training import TrainingBudget
from engine.experiments.trials import Trial
from engine.platform.memory import watch_peak
from kernels.attention import PackedSequences
from tests.engine.experiments.toy_contests import assert_same_bytes_twice

TASK = Recall(length=64, keys=3, values=3)
TOY = TokenContest(
    task=TASK,
    layers=1,
    width=32,
    heads=2,
    block_size=16,
    budget=TrainingBudget(steps=3, batch=2, warm_up=1, weight_decay=0.01, clip=1.0, examples=3),
    rates=(1e-3, 1e-2),
    tuning_seeds=1,
)


def test_recall_asks_for_the_value_after_the_key() -> None:
    task = Recall(length=64, keys=5, values=7)
    tokens, targets, distances = task.draw(4, Generator().manual_seed(0))
    assert (targets[:, :32] == UNASKED).all()
    for row, answers, away in zip(tokens, targets, distances, strict=True):
        for at in range(32, 64):
            key_at = at - int(away[at])
            assert key_at < 32
            assert row[key_at] == row[at]
            assert row[key_at + 1] - task.keys == answers[at]


def test_majority_is_the_most_frequent_symbol() -> None:
    tokens, targets, _ = Majority(length=40, symbols=4, favoured=0.2).draw(
        6, Generator().manual_seed(0)
    )
    for row, answers in zip(tokens[:, 1:].tolist(), targets, strict=True):
        assert row.count(int(answers[0])) == max(map(row.count, range(4)))
        assert (answers[1:] == UNASKED).all()


def test_accuracy_by_distance() -> None:
    correct = torch.tensor([True, False, True, True])
    found = accuracy_by_distance(correct, torch.tensor([1, 8, 9, 40]), 40)
    assert found == {
        "accuracy_at_0_to_10": pytest.approx(2 / 3),
        "accuracy_at_30_to_40": 1.0,
    }


def test_a_contest_gives_the_same_bytes_twice(tmp_path: Path) -> None:
    assert_same_bytes_twice(TOY, tmp_path, ("block_diagonal", "lln_diag"))


@pytest.mark.parametrize("name", ATTENTIONS)
def test_every_attention_trains_with_equally_many_parameters(name: str) -> None:
    trial = Trial(method=name, rate=1e-2, seed=0, part="test")
    model, loss = TOY.train(trial)
    assert loss > 0
    assert count_parameters(model) == TOY.settings()["parameters"]
    assert all(parameter.grad is not None for parameter in model.parameters())


@pytest.mark.parametrize("name", ATTENTIONS)
def test_only_block_diagonal_is_blind_outside_its_block(name: str) -> None:
    """Else the control would not be one."""
    generator = Generator().manual_seed(0)
    q, k, v = torch.randn(3, 64, 2, 16, generator=generator).unbind()
    attend, packed = find_attention(name, block_size=16), PackedSequences.of([0, 64], q.device)
    other = v.clone()
    other[:16] += 1
    moved = (attend(q, k, v, packed) - attend(q, k, other, packed))[16:].abs().max()
    assert (moved > 1e-4) == (name != "block_diagonal")


def test_training_memory_is_linear_in_length_and_within_the_estimate() -> None:
    """No N x N anywhere: four times the length takes four times the memory."""
    peaks = []
    for length in (128, 512):
        contest = replace(TOY, task=replace(TASK, length=length))
        model = contest.model("lln_diag")
        examples = contest.task.draw(contest.budget.batch, Generator().manual_seed(0), "training")
        with watch_peak(torch.device("cpu")) as found:
            logits = model(examples.tokens).flatten(0, 1)
            loss = F.cross_entropy(logits, examples.targets.flatten())
            loss.backward()  # type: ignore[no-untyped-call]
        assert found.peak < contest.training_bytes
        peaks.append(found.peak)
    assert peaks[1] < 4.5 * peaks[0]


def test_too_little_memory_is_told_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.experiments.training_memory.free_bytes", lambda device: 1000)
    plan = ContestPlan(contest=TOY, methods=TOY.methods, seeds=2, threads=1)
    with pytest.raises(InsufficientMemory, match="recall needs about"):
        run_contest(plan, tmp_path / "out", {}, lambda *told: None)
    assert not (tmp_path / "out").exists()


def test_unknown_attention() -> None:
    with pytest.raises(InvalidInput, match="unknown attention 'flash'; choose one of block_diag"):
        find_attention("flash", block_size=8)
