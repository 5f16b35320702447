"""Optimisers of a small transformer: the factors of FA-Adam, and trials that end at a target."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Generator

from engine.evaluation.corpora import SOURCES, CorpusSource
from engine.experiments.contests.masked import MaskedContest
from engine.experiments.contests.network import NetworkContest
from engine.experiments.network_steppers import NETWORK_STEPPERS, network_factors
from engine.experiments.steppers import fisher_factors
from engine.experiments.tasks.attention_problems import AttentionLayer
from engine.experiments.tasks.masked_text import TextSource
from engine.experiments.training import TrainingBudget
from engine.experiments.trials import Trial
from engine.training.data import Document
from tests.engine.experiments.toy_contests import assert_same_bytes_twice

CONTEST = NetworkContest(
    masked=MaskedContest(
        source=TextSource(corpora=("toy",), vocabulary=270, length=16),
        layers=1,
        width=32,
        heads=2,
        block_size=16,
        budget=TrainingBudget(steps=6, batch=2, warm_up=1, weight_decay=0.01, clip=1.0, examples=3),
        watched=2,
        watched_tokens=16,
        rates=(),
        tuning_seeds=0,
    ),
    target=1.0,
    measured_every=2,
    rates=(1e-3,),
    tuning_seeds=1,
)


@pytest.fixture(autouse=True)
def corpus(monkeypatch: pytest.MonkeyPatch) -> None:
    def read() -> Iterator[Document]:
        for number in range(40):
            yield Document(str(number), "", f"text {number} of {number * 7 % 11} " * 9)

    monkeypatch.setitem(SOURCES, "toy", CorpusSource("toy", read))


def test_the_same_bytes_twice(tmp_path: Path) -> None:
    assert_same_bytes_twice(CONTEST, tmp_path)


def test_a_trial_ends_at_its_target() -> None:
    trial = Trial(method="adamw", rate=1e-3, seed=0, part="test")
    missed = CONTEST.measure(trial)
    assert (missed["reached"], missed["steps"]) == (0, 6)
    easy = replace(CONTEST, target=missed["best_loss"] + 0.001)
    found = easy.measure(trial)
    assert (found["reached"], found["score"]) == (1, -found["steps"])
    assert found["score"] > missed["score"]


@pytest.mark.parametrize("name", NETWORK_STEPPERS)
def test_every_optimiser_steps_every_parameter_once(name: str) -> None:
    model = CONTEST.masked.model("softmax")
    optimisers = NETWORK_STEPPERS[name](model, 1e-2, 0.0)
    stepped = [one for each in optimisers for group in each.param_groups for one in group["params"]]
    assert len(stepped) == len({id(one) for one in stepped}) == len(list(model.parameters()))
    before = [parameter.detach().clone() for parameter in stepped]
    tokens = torch.randint(270, (2, 16), generator=Generator().manual_seed(0))
    model(tokens).square().mean().backward()
    for each in optimisers:
        each.step()
    moved = [(new - old).abs().max() for new, old in zip(stepped, before, strict=True)]
    assert all(torch.isfinite(one) for one in moved)
    assert sum(bool(one > 0) for one in moved) >= len(moved) - 1  # keys' biases have no gradient


def test_the_factors_are_those_of_one_layer() -> None:
    """Of one sequence, those that the contests on one layer use."""
    generator = Generator().manual_seed(0)
    x = torch.randn(10, 6, generator=generator)
    weights = torch.randn(2, 6, 4, generator=generator)
    keys = torch.randn(2, 10, 4, generator=generator)
    layer = AttentionLayer(x, keys)
    known = fisher_factors(layer, layer.patterns(weights))
    queries = (x @ weights).transpose(0, 1)
    found = network_factors(x[None], queries[None], keys.transpose(0, 1)[None]).queries
    torch.testing.assert_close(found.tokens[0], known.tokens)
    torch.testing.assert_close(found.others, known.keys)


def test_the_keys_factor_is_the_spread_of_what_is_read() -> None:
    generator = Generator().manual_seed(0)
    x = torch.randn(7, 3, generator=generator)
    q, k = torch.randn(2, 7, 1, 4, generator=generator).unbind()
    patterns = (q[:, 0] @ k[:, 0].T / 2).softmax(-1)
    wanted = torch.zeros(3, 3)
    for row in patterns:
        centred = x - row @ x
        wanted += centred.T @ (row[:, None] * centred)
    found = network_factors(x[None], q[None], k[None]).keys
    torch.testing.assert_close(found.tokens[0], wanted / 7)
