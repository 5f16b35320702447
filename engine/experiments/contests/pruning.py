"""Heads pruned in the middle of training, by several rules, against AdamW with all heads.

Every rule takes the same number of heads from every layer at the same step, and the rest of the
training continues with the others. Examples, steps and the sweep of rates are the same for all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Protocol

import torch
from torch import Generator, Tensor

from engine.experiments.contest import SCORE
from engine.experiments.contests.tokens import WatchModel
from engine.experiments.encoder import SmallEncoder
from engine.experiments.head_scores import (
    gate_fisher,
    magnitude,
    mean_distance,
    pattern_fisher,
)
from engine.experiments.tasks.task import Part
from engine.experiments.training import TrainingBudget
from engine.experiments.trials import Trial

UNPRUNED = "unpruned"
RULES = ("gate_fisher", "pattern_fisher", "magnitude", "random")
_ATTENTION = "softmax"
_SEED_OF_HEADS = 3_000_003  # added to a trial's seed: what heads are judged by is drawn apart


class Trained(Protocol):
    """A contest of attention kinds, whose training with softmax is pruned."""

    @property
    def budget(self) -> TrainingBudget: ...

    def settings(self) -> Mapping[str, Any]: ...

    def check(self) -> None: ...

    def train(self, trial: Trial, watch: WatchModel) -> tuple[SmallEncoder, float]: ...

    def figures(self, model: SmallEncoder, part: Part) -> Mapping[str, float]: ...

    def next_loss(self, model: SmallEncoder, count: int, generator: Generator) -> Tensor: ...

    def texts(self, count: int, generator: Generator) -> Tensor: ...


@dataclass(frozen=True)
class PruningPlan:
    at: float  # of the steps
    kept: int  # heads of each layer
    examples: int  # by which Fisher information is measured
    texts: int  # whose patterns are looked at, which are dense


@dataclass(frozen=True, kw_only=True)
class PruningContest:
    trained: Trained
    plan: PruningPlan
    rates: tuple[float, ...]
    tuning_seeds: int
    name: str = "pruning"
    methods: tuple[str, ...] = (UNPRUNED, *RULES)

    def settings(self) -> Mapping[str, Any]:
        return {**self.trained.settings(), "attention": _ATTENTION, "pruning": asdict(self.plan)}

    def check(self) -> None:
        self.trained.check()

    def measure(self, trial: Trial) -> Mapping[str, float]:
        part: Part = "validation" if trial.part == "tuning" else "test"
        before: dict[str, float] = {}

        def watch(model: SmallEncoder, done: int) -> bool:
            if done == 0:
                before.update(self._scales(model, trial.seed, "at_start"))
            if done == round(self.plan.at * self.trained.budget.steps):
                if trial.method != UNPRUNED:
                    self.prune(model, trial.method, trial.seed)
                before["score_when_pruned"] = self.trained.figures(model, part)[SCORE]
            return False

        model, _ = self.trained.train(replace(trial, method=_ATTENTION), watch)
        figures = self.trained.figures(model, part)
        return {**figures, **before, **self._scales(model, trial.seed, "at_end")}

    def prune(self, model: SmallEncoder, rule: str, seed: int) -> None:
        scores = self._scores(model, rule, seed)
        kept = scores.topk(self.plan.kept).indices
        model.set_gates(list(torch.zeros(scores.shape).scatter(1, kept, 1.0)))

    def _scores(self, model: SmallEncoder, rule: str, seed: int) -> Tensor:
        generator = _generator(seed)
        if rule == "random":
            return torch.rand(model.shape.layers, model.shape.heads, generator=generator)
        if rule == "magnitude":
            return magnitude(model)
        if rule == "pattern_fisher":
            return pattern_fisher(model, self.trained.texts(self.plan.texts, generator))
        return gate_fisher(
            model, lambda: self.trained.next_loss(model, 1, generator), self.plan.examples
        )

    def _scales(self, model: SmallEncoder, seed: int, when: str) -> dict[str, float]:
        """How far apart the heads' scales are: the deviation of the logarithms."""
        texts = self.trained.texts(self.plan.texts, _generator(seed))
        return {f"spread_of_scales_{when}": float(mean_distance(model, texts).log().std())}


def _generator(seed: int) -> Generator:
    return Generator().manual_seed(_SEED_OF_HEADS + seed)
