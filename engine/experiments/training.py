"""The one loop that all experiments with networks train with."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from statistics import fmean
from typing import TypeAlias

import torch
from torch import Tensor, nn

DESCRIPTION = "AdamW, linear warm-up, cosine decay to 0"


@dataclass(frozen=True, kw_only=True)
class TrainingBudget:
    """The same for every method of a contest."""

    steps: int
    batch: int
    warm_up: int
    weight_decay: float
    clip: float
    examples: int  # of the validation and of the test set

    def rate_share(self, step: int) -> float:
        warm = min(1.0, (step + 1) / self.warm_up)
        return warm * 0.5 * (1 + math.cos(math.pi * step / self.steps))


LossOfStep: TypeAlias = Callable[[], Tensor]
"""The loss of the next batch."""
Watch: TypeAlias = Callable[[int], None]
"""Called with how many steps are done, before the first and after each."""


def train(
    model: nn.Module,
    budget: TrainingBudget,
    rate: float,
    next_loss: LossOfStep,
    watch: Watch = lambda done: None,
) -> float:
    """Trains with AdamW and returns the mean loss of the last tenth of steps."""
    optimiser = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=budget.weight_decay)
    losses = []
    watch(0)
    for step in range(budget.steps):
        for group in optimiser.param_groups:
            group["lr"] = rate * budget.rate_share(step)
        loss = next_loss()
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(model.parameters(), budget.clip)
        optimiser.step()
        losses.append(float(loss.detach()))
        watch(step + 1)
    return fmean(losses[-max(1, len(losses) // 10) :])
