"""Every experiment by name, in two budgets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from engine.errors import find_named, unknown_name
from engine.experiments.catalogues.language import LANGUAGE_EXPERIMENTS
from engine.experiments.catalogues.optimisers import OPTIMISER_EXPERIMENTS
from engine.experiments.catalogues.tasks import TASK_EXPERIMENTS
from engine.experiments.contest import ContestPlan
from engine.experiments.experiment import Experiment


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
            raise unknown_name("method", method, contest.methods, param="methods")
    chosen = tuple(method for method in contest.methods if method in named)
    return ContestPlan(contest=contest, methods=chosen, seeds=seeds, threads=threads)


EXPERIMENTS: Mapping[str, Experiment] = MappingProxyType(
    {one.name: one for one in (*TASK_EXPERIMENTS, *LANGUAGE_EXPERIMENTS, *OPTIMISER_EXPERIMENTS)}
)
