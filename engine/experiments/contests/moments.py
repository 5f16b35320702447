"""LLN with alpha and beta matched in training, against fixed ones (LLN paper, figures 9 and 10)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Generator, Tensor

from engine.experiments.contest import SCORE
from engine.experiments.contests.tokens import SEED_OF_EXAMPLES, TokenContest
from engine.experiments.encoder import SmallEncoder
from engine.experiments.lln_scales import FIXED, scales_of
from engine.experiments.trials import Trial


@dataclass(frozen=True, kw_only=True)
class MomentContest:
    base: TokenContest  # what is trained; its own methods are not used
    watched: int  # times that alpha and beta are read in training, evenly, start and end included
    name: str = "moments"
    methods: tuple[str, ...] = ("lln_matched", *FIXED)

    @property
    def rates(self) -> tuple[float, ...]:
        return self.base.rates

    @property
    def tuning_seeds(self) -> int:
        return self.base.tuning_seeds

    def settings(self) -> Mapping[str, Any]:
        return {**self.base.settings(), "watched": self.watched}

    def check(self) -> None:
        self.base.check()

    def measure(self, trial: Trial) -> Mapping[str, float]:
        tokens, scales = self._shown(), {}

        def watch(model: SmallEncoder, done: int) -> bool:
            if trial.part == "test" and done in self.watched_steps:
                scales.update(_scales(model, tokens, done))
            return False

        model, _ = self.base.train(trial, watch)
        accuracy = self.base.judge(model, "validation" if trial.part == "tuning" else "test")
        return {SCORE: accuracy["accuracy"], "accuracy": accuracy["accuracy"], **scales}

    @property
    def watched_steps(self) -> list[int]:
        return [self.base.budget.steps * at // (self.watched - 1) for at in range(self.watched)]

    def _shown(self) -> Tensor:
        """The test examples whose queries and keys are looked at: a batch, as in training."""
        generator = Generator().manual_seed(SEED_OF_EXAMPLES["test"])
        return self.base.task.draw(self.base.budget.batch, generator, "test").tokens


@torch.no_grad()
def _scales(model: SmallEncoder, tokens: Tensor, done: int) -> dict[str, float]:
    return {
        f"{name}_of_layer_{layer}_at_{done}": value
        for layer, (attention, q, k) in enumerate(model.heads_of(tokens), start=1)
        for name, value in scales_of(attention, q, k).items()
    }
