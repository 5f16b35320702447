"""Attention kinds in one small encoder, trained on a task from scratch with the same budget."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Protocol, TypeAlias

import torch
from torch import Generator, Tensor
from torch.nn import functional as F

from engine.experiments.attention import ATTENTIONS, find_attention
from engine.experiments.contest import SCORE
from engine.experiments.encoder import EncoderShape, SmallEncoder, count_parameters
from engine.experiments.tasks.task import (
    UNASKED,
    Part,
    TokenTask,
    accuracy_by_distance,
)
from engine.experiments.training import DESCRIPTION, TrainingBudget, train
from engine.experiments.training_memory import bytes_of_layers, check_memory
from engine.experiments.trials import Trial

WatchModel: TypeAlias = Callable[[SmallEncoder, int], bool]
"""As `training.Watch`, of the model that is trained."""

SEED_OF_EXAMPLES: Mapping[Part, int] = {"validation": 1_000_003, "test": 2_000_003}


class EncoderContest(Protocol):
    """What training an encoder from scratch takes."""

    @property
    def budget(self) -> TrainingBudget: ...

    def model(self, attention: str) -> SmallEncoder: ...

    def next_loss(self, model: SmallEncoder, count: int, generator: Generator) -> Tensor: ...


def train_encoder(
    contest: EncoderContest, trial: Trial, watch: WatchModel
) -> tuple[SmallEncoder, float]:
    """The model of a trial, and the mean loss of its last tenth of steps.

    The seed gives the first weights and the examples, the same for every attention kind.
    """
    torch.manual_seed(trial.seed)
    model = contest.model(trial.method)
    generator = Generator().manual_seed(trial.seed)
    next_loss = partial(contest.next_loss, model, contest.budget.batch, generator)
    return model, train(model, contest.budget, trial.rate, next_loss, partial(watch, model))


@dataclass(frozen=True, kw_only=True)
class TokenContest:
    task: TokenTask
    layers: int
    width: int
    heads: int
    block_size: int
    budget: TrainingBudget
    rates: tuple[float, ...]
    tuning_seeds: int
    methods: tuple[str, ...] = tuple(ATTENTIONS)

    @property
    def name(self) -> str:
        return self.task.name

    def settings(self) -> Mapping[str, Any]:
        sources = dict(self.task.sources())
        return {
            **({"sources": sources} if sources else {}),
            "task": asdict(self.task),  # type: ignore[call-overload]  # each task is a dataclass
            "layers": self.layers,
            "width": self.width,
            "heads": self.heads,
            "block_size": self.block_size,
            "training": asdict(self.budget),
            "optimiser": DESCRIPTION,
            "parameters": count_parameters(self.model("softmax")),
        }

    def check(self) -> None:
        check_memory(self.name, self.training_bytes)

    @property
    def training_bytes(self) -> int:
        tokens = self.budget.batch * self.task.length
        return bytes_of_layers(tokens=tokens, layers=self.layers, width=self.width)

    def model(self, attention: str) -> SmallEncoder:
        shape = EncoderShape(
            layers=self.layers,
            width=self.width,
            heads=self.heads,
            length=self.task.length,
            vocabulary=self.task.vocabulary,
            classes=self.task.classes,
            patch=self.task.patch,
            reads_neighbour=self.task.reads_neighbour,
            pools=self.task.pools,
        )
        return SmallEncoder(shape, find_attention(attention, block_size=self.block_size))

    def measure(self, trial: Trial) -> Mapping[str, float]:
        model, loss = self.train(trial)
        part: Part = "validation" if trial.part == "tuning" else "test"
        return {**self.figures(model, part), "last_training_loss": loss}

    def figures(self, model: SmallEncoder, part: Part) -> Mapping[str, float]:
        found = self.judge(model, part)
        return {SCORE: found["accuracy"], **found}

    def train(
        self, trial: Trial, watch: WatchModel = lambda model, done: False
    ) -> tuple[SmallEncoder, float]:
        return train_encoder(self, trial, watch)

    def next_loss(self, model: SmallEncoder, count: int, generator: Generator) -> Tensor:
        examples = self.task.draw(count, generator, "training")
        logits = model(examples.tokens).flatten(0, 1)
        return F.cross_entropy(logits, examples.targets.flatten(), ignore_index=UNASKED)

    def texts(self, count: int, generator: Generator) -> Tensor:
        return self.task.draw(count, generator, "training").tokens

    @torch.no_grad()
    def judge(self, model: SmallEncoder, part: Part) -> dict[str, float]:
        """Accuracy on examples that all trials share and none was trained on."""
        generator = Generator().manual_seed(SEED_OF_EXAMPLES[part])
        correct, distances = [], []
        for start in range(0, self.budget.examples, self.budget.batch):
            count = min(self.budget.batch, self.budget.examples - start)
            examples = self.task.draw(count, generator, part)
            asked = examples.targets != UNASKED
            found = model(examples.tokens).argmax(-1) == examples.targets
            correct.append(found[asked])
            distances.append(examples.distances[asked])
        every = torch.cat(correct)
        return {
            "accuracy": float(every.double().mean()),
            **accuracy_by_distance(every, torch.cat(distances), self.task.length),
        }
