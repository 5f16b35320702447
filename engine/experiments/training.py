"""The one loop that all experiments with networks train with."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TypeAlias

from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

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

    def warm_share(self, step: int) -> float:
        return min(1.0, (step + 1) / self.warm_up)

    def rate_share(self, step: int) -> float:
        return self.warm_share(step) * 0.5 * (1 + math.cos(math.pi * step / self.steps))


LossOfStep: TypeAlias = Callable[[], Tensor]
"""The loss of the next batch."""
Watch: TypeAlias = Callable[[int], bool]
"""Called with how many steps are done, before the first and after each; true ends the training."""

Backward: TypeAlias = Callable[[Tensor], bool]
"""Leaves the loss's gradients; false if there is no step to take with them."""


def _backward(loss: Tensor) -> bool:
    loss.backward()  # type: ignore[no-untyped-call]
    return True


def train(
    model: nn.Module,
    budget: TrainingBudget,
    rate: float,
    next_loss: LossOfStep,
    is_done: Watch = lambda done: False,
    *,
    optimisers: Sequence[Optimizer] | None = None,
    rate_share: Callable[[int], float] | None = None,
    backward: Backward = _backward,
) -> float:
    """Trains and returns the mean loss of the last tenth of steps.

    With AdamW and the budget's schedule, where no other is given. A group of an optimiser may have
    a "multiple" of the rate.
    """
    share_of = rate_share or budget.rate_share
    chosen = optimisers or [AdamW(model.parameters(), lr=rate, weight_decay=budget.weight_decay)]
    losses: list[float] = []
    while not is_done(len(losses)) and len(losses) < budget.steps:
        for group in (group for optimiser in chosen for group in optimiser.param_groups):
            group["lr"] = rate * share_of(len(losses)) * group.get("multiple", 1.0)
        loss = next_loss()
        model.zero_grad()
        if backward(loss):
            nn.utils.clip_grad_norm_(model.parameters(), budget.clip)
            for optimiser in chosen:
                optimiser.step()
        losses.append(float(loss.detach()))
    return fmean(losses[-max(1, len(losses) // 10) :])
