"""Every experiment by name, in two budgets."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, TypeAlias

from engine.errors import find_named, unknown_name
from engine.experiments.contest import Contest, ContestPlan
from engine.experiments.tasks import Majority, Recall, TokenTask
from engine.experiments.token_contest import TokenContest, TrainingBudget

Budget: TypeAlias = Literal["small", "full"]
BUDGETS: tuple[Budget, ...] = ("small", "full")


@dataclass(frozen=True)
class Experiment:
    name: str
    about: str
    contests: Mapping[str, Callable[[], Contest]]  # by budget


def find_experiment(name: str) -> Experiment:
    return find_named("experiment", name, EXPERIMENTS, param="experiment")


def plan_experiment(
    name: str, *, budget: str, methods: Sequence[str] | None, seeds: int, threads: int
) -> ContestPlan:
    """A checked plan. The reference always takes part, and methods keep the contest's order."""
    experiment = find_experiment(name)
    contest = find_named("budget", budget, experiment.contests, param="budget")()
    named = contest.methods if methods is None else (contest.methods[0], *methods)
    for method in named:
        if method not in contest.methods:
            raise unknown_name("method", method, contest.methods, param="attention")
    chosen = tuple(method for method in contest.methods if method in named)
    return ContestPlan(contest=contest, methods=chosen, seeds=seeds, threads=threads)


def _training(*, steps: int, batch: int, examples: int) -> TrainingBudget:
    return TrainingBudget(
        steps=steps,
        batch=batch,
        warm_up=max(1, steps // 10),
        weight_decay=0.01,
        clip=1.0,
        examples=examples,
    )


def _small(task: TokenTask, training: TrainingBudget) -> Contest:
    return _contest(task, training, rates=(1e-3, 3e-3, 1e-2, 3e-2), tuning_seeds=1)


def _full(task: TokenTask, training: TrainingBudget) -> Contest:
    return _contest(task, training, rates=(3e-4, 1e-3, 3e-3, 1e-2, 3e-2), tuning_seeds=2)


def _contest(
    task: TokenTask, training: TrainingBudget, *, rates: tuple[float, ...], tuning_seeds: int
) -> Contest:
    return TokenContest(
        task=task,
        layers=2,
        width=64,
        heads=2,
        block_size=32,
        budget=training,
        rates=rates,
        tuning_seeds=tuning_seeds,
    )


def _small_recall() -> Contest:
    task = Recall(length=256, keys=8, values=8)
    return _small(task, _training(steps=250, batch=8, examples=128))


def _full_recall() -> Contest:
    task = Recall(length=512, keys=16, values=16)
    return _full(task, _training(steps=3000, batch=32, examples=1024))


def _small_majority() -> Contest:
    task = Majority(length=256, symbols=8, favoured=0.1)
    return _small(task, _training(steps=100, batch=16, examples=512))


def _full_majority() -> Contest:
    task = Majority(length=1024, symbols=8, favoured=0.05)
    return _full(task, _training(steps=1000, batch=32, examples=2048))


EXPERIMENTS: Mapping[str, Experiment] = MappingProxyType(
    {
        one.name: one
        for one in (
            Experiment(
                "recall",
                "attention kinds: the value of a key that stands outside the question's block",
                {"small": _small_recall, "full": _full_recall},
            ),
            Experiment(
                "majority",
                "attention kinds: the most frequent symbol of the whole text",
                {"small": _small_majority, "full": _full_majority},
            ),
        )
    }
)
