"""Optimisers in a small transformer: steps until a masked language model's loss reaches a target.

The rate stays after the warm-up, so that a trial may end at the target: its seconds are those to
the target, the measuring of the loss on the way included, which is the same for all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Generator

from engine.experiments.contest import SCORE
from engine.experiments.contests.masked import MaskedContest
from engine.experiments.network_steppers import NETWORK_STEPPERS
from engine.experiments.tasks.task import Part
from engine.experiments.training import train
from engine.experiments.trials import Trial

_ATTENTION = "softmax"


@dataclass(frozen=True, kw_only=True)
class NetworkContest:
    masked: MaskedContest  # what is trained; its own rates and methods are not used
    target: float  # nats of held-out loss
    measured_every: int  # steps
    rates: tuple[float, ...]
    tuning_seeds: int
    name: str = "transformer"
    methods: tuple[str, ...] = tuple(NETWORK_STEPPERS)

    def settings(self) -> Mapping[str, Any]:
        unused = {"watched", "watched_tokens", "optimiser"}
        task = {name: one for name, one in self.masked.settings().items() if name not in unused}
        return {
            **task,
            "attention": _ATTENTION,
            "target": self.target,
            "measured_every": self.measured_every,
            "schedule": "linear warm-up, then constant",
        }

    def check(self) -> None:
        self.masked.check()

    def measure(self, trial: Trial) -> Mapping[str, float]:
        torch.manual_seed(trial.seed)
        model, budget = self.masked.model(_ATTENTION), self.masked.budget
        generator = Generator().manual_seed(trial.seed)
        part: Part = "validation" if trial.part == "tuning" else "test"
        losses: dict[int, float] = {}

        next_loss = partial(self.masked.next_loss, model, budget.batch, generator)

        def is_there(done: int) -> bool:
            if done % self.measured_every:
                return False
            losses[done] = self.masked.judge(model, part)
            return losses[done] <= self.target

        train(
            model,
            budget,
            trial.rate,
            next_loss,
            is_there,
            optimisers=NETWORK_STEPPERS[trial.method](model, trial.rate, budget.weight_decay),
            rate_share=budget.warm_share,
        )
        return self._figures(losses)

    def _figures(self, losses: Mapping[int, float]) -> Mapping[str, float]:
        best, steps = min(losses.values()), max(losses)
        if best <= self.target:
            return {SCORE: -steps, "steps": steps, "reached": 1, "best_loss": best}
        # Worse than any trial that reached the target, and the worse the higher its loss stayed.
        missed = self.masked.budget.steps * (1 + best - self.target)
        return {SCORE: -missed, "steps": steps, "reached": 0, "best_loss": best}
