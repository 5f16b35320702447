"""Optimisers on a problem of one attention layer: steps until the loss is a hundredth of its first.

The seed draws the problem. A trial ends at the target, so its seconds are those to the target.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from torch.linalg import LinAlgError  # type: ignore[attr-defined]

from engine.experiments.contest import SCORE
from engine.experiments.steppers import STEPPERS
from engine.experiments.tasks.attention_problems import ProblemShape
from engine.experiments.trials import Trial

_LOST = 1e6
"""A loss this many times the first is a divergence: the trial ends."""


@dataclass(frozen=True, kw_only=True)
class OptimiserContest:
    problem: str
    shape: ProblemShape
    max_steps: int
    target: float  # of the first loss
    rates: tuple[float, ...]
    tuning_seeds: int
    methods: tuple[str, ...] = tuple(STEPPERS)

    @property
    def name(self) -> str:
        return self.problem

    def settings(self) -> Mapping[str, Any]:
        return {
            "problem": asdict(self.shape),
            "max_steps": self.max_steps,
            "target": self.target,
        }

    def check(self) -> None:
        """The problems take less memory than torch itself."""

    def measure(self, trial: Trial) -> Mapping[str, float]:
        problem = self.shape.draw(self.problem, trial.seed)
        weights = problem.start.clone()
        first, gradient = problem(weights)
        stepper = STEPPERS[trial.method](problem.layer, weights, trial.rate)
        share, best = 1.0, 1.0
        for step in range(1, self.max_steps + 1):
            try:
                stepper.step(gradient)
            except LinAlgError:  # a printed form solved a singular system
                break
            loss, gradient = problem(weights)
            share = loss / first
            if not math.isfinite(share) or share > _LOST:
                break
            best = min(best, share)
            if share <= self.target:
                return {SCORE: -step, "steps": step, "reached": 1, "lowest_loss": best}
        # Worse than any trial that reached the target, and the worse the higher its loss stayed.
        missed = self.max_steps * (1 + math.log(best / self.target) / math.log(1 / self.target))
        return {SCORE: -missed, "steps": self.max_steps, "reached": 0, "lowest_loss": best}
