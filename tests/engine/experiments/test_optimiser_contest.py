"""The problems' gradients and Fisher matrices against autograd, and each optimiser's step."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from engine.experiments.contests.optimisers import OptimiserContest
from engine.experiments.steppers import STEPPERS, FisherAdam, fisher_factors
from engine.experiments.tasks.attention_problems import PROBLEMS, Problem, ProblemShape
from engine.experiments.trials import Trial

SHAPE = ProblemShape(heads=2, width=6, head_dim=3, condition=4, sharpness=0.5)


def drawn(kind: str) -> tuple[Problem, Tensor]:
    weights = torch.randn(2, 6, 3, generator=torch.Generator().manual_seed(9), dtype=torch.float64)
    return SHAPE.draw(kind, 0), weights


def kl_from_the_optimum(problem: Problem, weights: Tensor) -> Tensor:
    """Written out again, for autograd."""
    tokens, keys = problem.layer.tokens, problem.layer.keys
    logits = [
        torch.einsum("nd,hde,hme->hnm", tokens, one, keys) / math.sqrt(keys.shape[-1])
        for one in (problem.optimum, weights)
    ]
    wanted, found = (one.log_softmax(-1) for one in logits)
    return (wanted.exp() * (wanted - found)).sum() / len(tokens)


@pytest.mark.parametrize("kind", PROBLEMS)
def test_gradient(kind: str) -> None:
    problem, weights = drawn(kind)
    loss, gradient = problem(weights)
    slope = torch.randn_like(weights)
    step = 1e-6
    ahead, behind = problem(weights + step * slope).loss, problem(weights - step * slope).loss
    assert (ahead - behind) / (2 * step) == pytest.approx(float((gradient * slope).sum()), rel=1e-6)
    assert loss > 0
    assert problem(problem.optimum).loss == pytest.approx(0, abs=1e-12)


def test_the_logistic_loss_is_the_divergence_and_the_quadratic_is_its_hessian() -> None:
    logistic, weights = drawn("logistic")
    quadratic, _ = drawn("quadratic")
    assert logistic(weights).loss == pytest.approx(float(kl_from_the_optimum(logistic, weights)))
    small = 1e-3 * weights
    optimum = logistic.optimum
    assert logistic(optimum + small).loss == pytest.approx(
        quadratic(optimum + small).loss, rel=1e-2
    )


def test_the_factors_sums_are_exact() -> None:
    """Their Kronecker product is an approximation, but with one token it is the Fisher matrix."""
    problem, weights = drawn("logistic")
    layer = problem.layer
    patterns = layer.patterns(weights)
    wanted = sum(
        layer.keys.mT @ (torch.diag_embed(row) - row[:, :, None] * row[:, None, :]) @ layer.keys
        for row in patterns.unbind(1)
    )
    found = fisher_factors(layer, patterns)
    torch.testing.assert_close(found.keys * len(layer.tokens) * 3, wanted)
    torch.testing.assert_close(found.tokens, layer.tokens.mT @ layer.tokens / len(layer.tokens))


@pytest.mark.parametrize("name", [name for name in STEPPERS if "printed" not in name])
def test_a_small_step_lowers_the_loss(name: str) -> None:
    problem, weights = drawn("logistic")
    before, gradient = problem(weights)
    STEPPERS[name](problem.layer, weights, 1e-3).step(gradient)
    assert problem(weights).loss < before


def test_fisher_adam_has_adams_norm() -> None:
    problem, weights = drawn("logistic")
    before = weights.clone()
    FisherAdam(problem.layer, weights, 0.01).step(problem(weights).gradient)
    size = math.sqrt(weights[0].numel())  # Adam's first step is a sign
    torch.testing.assert_close(
        (weights - before).flatten(1).norm(dim=1), torch.full((2,), 0.01 * size).double()
    )


def test_a_trial_ends_at_the_target_and_divergence_scores_below_it() -> None:
    contest = OptimiserContest(
        problem="logistic", shape=SHAPE, max_steps=60, target=0.5, rates=(0.1,), tuning_seeds=1
    )
    good = contest.measure(Trial(method="adamw", rate=0.1, seed=0, part="test"))
    bad = contest.measure(Trial(method="natural", rate=1e9, seed=0, part="test"))
    assert good["reached"] == 1
    assert good["steps"] < 60
    assert good["lowest_loss"] <= 0.5
    assert (bad["reached"], bad["steps"]) == (0, 60)
    assert bad["score"] < good["score"]
