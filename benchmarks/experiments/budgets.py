"""About what the full budgets would take, from what the small ones took.

Only the time of the small budgets was measured. A trial's time is taken to grow with its trained
tokens times the parameters of the layers; softmax over longer texts comes on top of that.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.experiments.tables import Stored, stored_experiments
from engine.experiments.catalogue import EXPERIMENTS, plan_experiment
from engine.experiments.contests.finetune import FinetuneContest
from engine.experiments.contests.half import HalfContest
from engine.experiments.contests.masked import MaskedContest
from engine.experiments.contests.moments import MomentContest
from engine.experiments.contests.network import NetworkContest
from engine.experiments.contests.pruning import PruningContest
from engine.experiments.contests.tokens import TokenContest
from engine.experiments.encoder import count_parameters
from engine.experiments.selectivity.contest import SelectivityContest

HEAD = (
    *("experiment", "trials", "steps of a trial", "tokens of a step"),
    "CPU hours of one core, about",
)
_SEEDS = 5


def rows(folder: Path) -> Iterator[tuple[str, ...]]:
    stored = stored_experiments(folder)
    for name in EXPERIMENTS:
        small, plan = (
            plan_experiment(name, budget=budget, methods=None, seeds=_SEEDS, threads=1)
            for budget in ("small", "full")
        )
        measured = stored.get(f"{name}-small")
        if measured is None or work(plan.contest) is None:
            continue
        growth = _of(work(plan.contest)) / _of(work(small.contest))
        hours = plan.num_trials * _seconds(measured) * growth / 3600
        budget, length = _budget_and_length(plan.contest)
        yield (
            *(f"`{name}`", str(plan.num_trials), f"{budget.steps:,}"),
            *(f"{budget.batch * length:,}", f"{float(f'{hours:.2g}'):,.0f}"),
        )


def work(contest: Any) -> float | None:
    """Trained tokens times parameters; None for the problems of one layer, which take minutes."""
    trained = _trained(contest)
    if trained is None:
        return None
    budget, length = _budget_and_length(trained)
    tokens = budget.steps * budget.batch * length
    if isinstance(trained, FinetuneContest | SelectivityContest):
        return float(tokens * trained.trained_layers)
    return float(tokens * count_parameters(trained.model("softmax").layers))


def _trained(contest: Any) -> Any:
    match contest:
        case TokenContest() | MaskedContest() | FinetuneContest() | SelectivityContest():
            return contest
        case MomentContest(base=base):
            return base
        case HalfContest(masked=masked) | NetworkContest(masked=masked):
            return masked
        case PruningContest(trained=trained):
            return trained
        case _:
            return None


def _budget_and_length(contest: Any) -> tuple[Any, int]:
    trained = _trained(contest)
    match trained:
        case TokenContest(task=task):
            return trained.budget, task.length
        case MaskedContest(source=source):
            return trained.budget, source.length
        case _:
            return trained.budget, trained.length


def _seconds(stored: Stored) -> float:
    return fmean(stored.seconds(method).mean for method in stored.methods)


def _of(value: float | None) -> float:
    assert value is not None
    return value
