"""Masked language models trained in float16: the loss, and the loss scale that it needs.

A gradient that is too large for float16 halves the scale and skips the step; a run of steps without
one doubles it. So the scale ends near the largest that the gradients allow. Its inverse is what the
LLN paper watches (figures 8b and 10b). Products and what is kept between them are float16, weights,
norms and sums float32, as PyTorch's autocast has them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Generator, Tensor, nn

from engine.experiments.contest import SCORE
from engine.experiments.contests.masked import MaskedContest
from engine.experiments.encoder import SmallEncoder
from engine.experiments.tasks.task import Part
from engine.experiments.training import train
from engine.experiments.trials import Trial

METHODS = ("softmax", "lln", "lln_4", "lln_diag", "block_diagonal")


@dataclass(frozen=True)
class Scaling:
    first: float
    double_after: int  # steps without an overflow


@dataclass
class LossScale:
    """Dynamic loss scaling, as mixed precision is trained with on GPUs."""

    model: nn.Module
    plan: Scaling
    scale: float = field(init=False)
    history: list[float] = field(default_factory=list)  # of every step
    skipped: int = 0
    _good_steps: int = 0

    def __post_init__(self) -> None:
        self.scale = self.plan.first

    def backward(self, loss: Tensor) -> bool:
        """Leaves unscaled gradients; false if the step is to be skipped."""
        self.history.append(self.scale)
        (loss * self.scale).backward()  # type: ignore[no-untyped-call]
        gradients = [one.grad for one in self.model.parameters() if one.grad is not None]
        if not all(bool(torch.isfinite(one).all()) for one in gradients):
            self.skipped += 1
            self._good_steps = 0
            self.scale /= 2
            return False
        for one in gradients:
            one /= self.scale
        self._good_steps = (self._good_steps + 1) % self.plan.double_after
        if self._good_steps == 0:
            self.scale *= 2
        return True


@dataclass(frozen=True, kw_only=True)
class HalfContest:
    masked: MaskedContest  # what is trained; its own methods are not used
    scaling: Scaling
    name: str = "float16"
    methods: tuple[str, ...] = METHODS

    @property
    def rates(self) -> tuple[float, ...]:
        return self.masked.rates

    @property
    def tuning_seeds(self) -> int:
        return self.masked.tuning_seeds

    def settings(self) -> Mapping[str, Any]:
        unused = {"watched", "watched_tokens"}
        task = {name: one for name, one in self.masked.settings().items() if name not in unused}
        return {**task, "precision": "float16", "loss_scale": asdict(self.scaling)}

    def check(self) -> None:
        self.masked.check()

    def measure(self, trial: Trial) -> Mapping[str, float]:
        torch.manual_seed(trial.seed)
        model, budget = self.masked.model(trial.method), self.masked.budget
        generator = Generator().manual_seed(trial.seed)
        scale = LossScale(model, self.scaling)

        def next_loss() -> Tensor:
            with _float16():
                return self.masked.next_loss(model, budget.batch, generator)

        train(model, budget, trial.rate, next_loss, backward=scale.backward)
        loss = self._judge(model, "validation" if trial.part == "tuning" else "test")
        settled = scale.history[len(scale.history) // 2 :]
        return {
            SCORE: -loss,
            "loss": loss,
            "log2_inverse_scale": -math.log2(min(settled)),
            "skipped_steps": scale.skipped,
        }

    def _judge(self, model: SmallEncoder, part: Part) -> float:
        """The held-out loss; that of a guess among all pieces where float16 gave no number."""
        with _float16():
            loss = self.masked.judge(model, part)
        return loss if math.isfinite(loss) else math.log(self.masked.source.vocabulary)


def _float16() -> torch.autocast:
    return torch.autocast("cpu", dtype=torch.float16)
