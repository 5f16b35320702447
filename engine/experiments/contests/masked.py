"""Attention kinds in one small encoder, pre-trained from scratch as a masked language model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Generator, Tensor
from torch.nn import functional as F

from engine.experiments.attention import ATTENTIONS, find_attention
from engine.experiments.concentration import layer_figures
from engine.experiments.contest import SCORE
from engine.experiments.contests.tokens import SEED_OF_EXAMPLES, WatchModel, train_encoder
from engine.experiments.encoder import EncoderShape, SmallEncoder, count_parameters
from engine.experiments.lln_scales import MATCHED
from engine.experiments.tasks.masked_text import Masked, TextSource
from engine.experiments.tasks.task import UNASKED, Part
from engine.experiments.tasks.text_sources import digests
from engine.experiments.training import DESCRIPTION, TrainingBudget
from engine.experiments.training_memory import bytes_of_layers, check_memory
from engine.experiments.trials import Trial

METHODS = ("softmax", *(name for name in ATTENTIONS if name != "softmax"), *MATCHED)
"""The reference is softmax: how near do the others come?"""


@dataclass(frozen=True, kw_only=True)
class MaskedContest:
    source: TextSource
    layers: int
    width: int
    heads: int
    block_size: int
    budget: TrainingBudget
    watched: int  # times that a test trial's loss is measured, evenly, the start and end included
    watched_tokens: int  # of the text whose attention is looked at, which is dense
    rates: tuple[float, ...]
    tuning_seeds: int
    name: str = "mlm"
    methods: tuple[str, ...] = METHODS

    def settings(self) -> Mapping[str, Any]:
        return {
            "sources": {**digests(self.source.corpora), "tokens": self.source.digest()},
            "text": asdict(self.source),
            "layers": self.layers,
            "width": self.width,
            "heads": self.heads,
            "block_size": self.block_size,
            "training": asdict(self.budget),
            "watched": self.watched,
            "watched_tokens": self.watched_tokens,
            "optimiser": DESCRIPTION,
            "parameters": count_parameters(self.model("softmax")),
        }

    def check(self) -> None:
        self.source.check()
        check_memory(self.name, self.training_bytes)

    @property
    def training_bytes(self) -> int:
        """Bytes of the layers and, at one position of four at most, of the logits and their
        gradients."""
        tokens = self.budget.batch * self.source.length
        in_layers = bytes_of_layers(tokens=tokens, layers=self.layers, width=self.width)
        return in_layers + 4 * tokens * self.source.vocabulary

    def model(self, attention: str) -> SmallEncoder:
        shape = EncoderShape(
            layers=self.layers,
            width=self.width,
            heads=self.heads,
            length=self.source.length,
            vocabulary=self.source.vocabulary,
            classes=self.source.vocabulary,
            starts_as_waves=True,
            reads_neighbour=True,
            reads_next=True,
        )
        return SmallEncoder(shape, find_attention(attention, block_size=self.block_size))

    def measure(self, trial: Trial) -> Mapping[str, float]:
        curve: dict[str, float] = {}

        def watch(model: SmallEncoder, done: int) -> bool:
            if trial.part == "test" and done in self.watched_steps:
                curve.update(self._watch(model, self.tokens_after(done)))
            return False

        model, last = self.train(trial, watch)
        figures = self.figures(model, "validation" if trial.part == "tuning" else "test")
        return {**figures, "last_training_loss": last, **curve}

    def train(self, trial: Trial, watch: WatchModel) -> tuple[SmallEncoder, float]:
        return train_encoder(self, trial, watch)

    def next_loss(self, model: SmallEncoder, count: int, generator: Generator) -> Tensor:
        return masked_loss(model, self.source.draw(count, generator, "training"))

    def texts(self, count: int, generator: Generator) -> Tensor:
        return self.source.draw(count, generator, "training").inputs

    def figures(self, model: SmallEncoder, part: Part) -> Mapping[str, float]:
        loss = self.judge(model, part)
        return {SCORE: -loss, "loss": loss}

    @property
    def watched_steps(self) -> list[int]:
        return [self.budget.steps * at // (self.watched - 1) for at in range(self.watched)]

    def tokens_after(self, steps: int) -> int:
        return steps * self.budget.batch * self.source.length

    @torch.no_grad()
    def judge(self, model: SmallEncoder, part: Part) -> float:
        """The mean loss at masked pieces of windows that all trials share and none trained on."""
        total, count = 0.0, 0
        for masked in self._held_out(part):
            asked = int((masked.targets != UNASKED).sum())
            total += asked * float(masked_loss(model, masked))
            count += asked
        return total / count

    def _held_out(self, part: Part) -> Iterator[Masked]:
        generator = Generator().manual_seed(SEED_OF_EXAMPLES[part])
        for start in range(0, self.budget.examples, self.budget.batch):
            count = min(self.budget.batch, self.budget.examples - start)
            yield self.source.draw(count, generator, part)

    def _watch(self, model: SmallEncoder, tokens: int) -> Iterator[tuple[str, float]]:
        yield f"loss_at_{tokens}", self.judge(model, "test")
        text = next(self._held_out("test")).inputs[0, : self.watched_tokens]
        for layer, found in enumerate(layer_figures(model, text), start=1):
            for figure, value in found.items():
                yield f"{figure}_of_layer_{layer}_at_{tokens}", value


def masked_loss(model: SmallEncoder, masked: Masked) -> Tensor:
    """Only what is asked for gets logits."""
    is_asked = masked.targets != UNASKED
    logits = model.head(model.states(masked.inputs)[is_asked])
    return F.cross_entropy(logits, masked.targets[is_asked])
