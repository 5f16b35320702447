"""What an experiment of the catalogue is, and what all of them train with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from engine.experiments.contest import Contest
from engine.experiments.training import TrainingBudget

SMALL_RATES = (1e-3, 3e-3, 1e-2)
"""For experiments whose trials take longer."""


@dataclass(frozen=True)
class Experiment:
    name: str
    about: str
    contests: Mapping[str, Callable[[], Contest]]  # by budget


def budget_of(*, steps: int, batch: int, examples: int) -> TrainingBudget:
    return TrainingBudget(
        steps=steps,
        batch=batch,
        warm_up=max(1, steps // 10),
        weight_decay=0.01,
        clip=1.0,
        examples=examples,
    )
