"""Contests that take a second, and what is expected of every contest."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from engine.experiments.contest import Contest, ContestPlan, run_contest
from engine.experiments.contests.tokens import TokenContest
from engine.experiments.tasks.task import TokenTask
from engine.experiments.training import TrainingBudget
from engine.experiments.trials import RESULT_FILE

BUDGET = TrainingBudget(steps=2, batch=2, warm_up=1, weight_decay=0.01, clip=1.0, examples=3)


def toy_contest(task: TokenTask) -> TokenContest:
    return TokenContest(
        task=task,
        layers=1,
        width=32,
        heads=2,
        block_size=16,
        budget=BUDGET,
        rates=(1e-3,),
        tuning_seeds=1,
    )


def assert_same_bytes_twice(
    contest: Contest, folder: Path, methods: Sequence[str] | None = None
) -> None:
    """Two runs give the same file; `methods` are all by default."""
    plan = ContestPlan(
        contest=contest, methods=tuple(methods or contest.methods), seeds=2, threads=1
    )
    for run in ("first", "second"):
        run_contest(plan, folder / run, {}, lambda *told: None)
    first, second = ((folder / run / RESULT_FILE).read_bytes() for run in ("first", "second"))
    assert first == second
