"""Optimisers against AdamW: their experiments, in two budgets."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

from engine.experiments.catalogues.language import full_masked, small_text_model
from engine.experiments.contest import Contest
from engine.experiments.contests.network import NetworkContest
from engine.experiments.contests.optimisers import OptimiserContest
from engine.experiments.contests.pruning import PruningContest, PruningPlan, Trained
from engine.experiments.contests.tokens import TokenContest
from engine.experiments.experiment import SMALL_RATES, Experiment, budget_of
from engine.experiments.tasks.attention_problems import ProblemShape
from engine.experiments.tasks.task import Recall


def _small_transformer() -> Contest:
    return NetworkContest(
        masked=small_text_model(steps=300, rates=(), tuning_seeds=0),
        target=4.3,
        measured_every=10,
        rates=(1e-3, 3e-3, 1e-2, 3e-2),
        tuning_seeds=1,
    )


def _full_transformer() -> Contest:
    masked = replace(full_masked(), budget=budget_of(steps=4000, batch=4, examples=64))
    return NetworkContest(
        masked=masked,
        target=4.0,
        measured_every=25,
        rates=(1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 0.1),
        tuning_seeds=2,
    )


def _pruning(trained: Trained, *, kept: int, texts: int, rates: tuple[float, ...]) -> Contest:
    plan = PruningPlan(at=0.8, kept=kept, examples=64, texts=texts)
    return PruningContest(trained=trained, plan=plan, rates=rates, tuning_seeds=1)


def _small_pruning() -> Contest:
    task = Recall(length=128, keys=8, values=8)
    trained = TokenContest(
        task=task,
        layers=2,
        width=64,
        heads=4,
        block_size=32,
        budget=budget_of(steps=250, batch=16, examples=256),
        rates=(),
        tuning_seeds=0,
    )
    return _pruning(trained, kept=1, texts=8, rates=SMALL_RATES)


def _full_pruning() -> Contest:
    masked = replace(full_masked(), budget=budget_of(steps=4000, batch=4, examples=64))
    return _pruning(masked, kept=2, texts=4, rates=(3e-4, *SMALL_RATES))


def _small_optimisers(problem: str) -> Contest:
    shape = ProblemShape(heads=2, width=16, head_dim=8, condition=10, sharpness=0.5)
    return _optimisers(problem, shape, max_steps=1000)


def _full_optimisers(problem: str) -> Contest:
    shape = ProblemShape(heads=4, width=64, head_dim=16, condition=30, sharpness=0.5)
    return _optimisers(problem, shape, max_steps=3000)


def _optimisers(problem: str, shape: ProblemShape, *, max_steps: int) -> Contest:
    return OptimiserContest(
        problem=problem,
        shape=shape,
        max_steps=max_steps,
        target=0.01,
        # Wide, since the forms scale their steps differently.
        rates=(1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0),
        tuning_seeds=2,
    )


def _budgets(
    small: Callable[[str], Contest], full: Callable[[str], Contest], problem: str
) -> Mapping[str, Callable[[], Contest]]:
    return {"small": partial(small, problem), "full": partial(full, problem)}


OPTIMISER_EXPERIMENTS = (
    Experiment(
        "quadratic",
        "optimisers: steps to a hundredth of the loss on a quadratic, whose Hessian is the "
        "Fisher matrix of attention patterns",
        _budgets(_small_optimisers, _full_optimisers, "quadratic"),
    ),
    Experiment(
        "logistic",
        "optimisers: the same on the divergence of patterns from given ones, a logistic regression",
        _budgets(_small_optimisers, _full_optimisers, "logistic"),
    ),
    Experiment(
        "transformer",
        "optimisers: steps until a masked language model's held-out loss reaches a target",
        {"small": _small_transformer, "full": _full_transformer},
    ),
    Experiment(
        "pruning",
        "rules by which heads are pruned in the middle of training, against AdamW with all heads",
        {"small": _small_pruning, "full": _full_pruning},
    ),
)
