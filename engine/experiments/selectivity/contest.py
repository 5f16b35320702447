"""Does LLN gain when its branch is made more selective?

Variants of the branch are trained in the upper layers of a converted model, so that late chunks
know their document. They are judged by passages that need it, on corpora outside training.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.optim import AdamW

from engine.config import EngineConfig
from engine.errors import InvalidInput
from engine.evaluation.bootstrap import Answers, mean_of_means
from engine.evaluation.corpora import load_corpus
from engine.evaluation.reading_documents import DocumentLimits
from engine.experiments.contest import SCORE
from engine.experiments.document_intervals import by_document
from engine.experiments.selectivity.known_chunks import KnownChunks
from engine.experiments.selectivity.left_out import LeftOutCorpus, read_left_out
from engine.experiments.selectivity.upper_layers import Readers, UpperLayers
from engine.experiments.selectivity.variants import VARIANTS, Below, Variant
from engine.experiments.tasks.task import Part
from engine.experiments.tasks.text_sources import digests, parts_of
from engine.experiments.training import DESCRIPTION, TrainingBudget, train
from engine.experiments.training_memory import bytes_of_layers, check_memory
from engine.experiments.trials import Findings, Trial
from engine.model.embedding_model import load_model
from engine.training.data import Document, digest_in_order
from engine.training.recipe import Stage, load_recipe

_RECIPE = "passages"
_CHARACTERS_OF_A_TOKEN = 6
"""More than any corpus has: a document of this many characters is long enough."""


@dataclass(frozen=True, kw_only=True)
class SelectivityContest:
    model: str
    block: int  # tokens, at every length
    length: int  # tokens of a document to train on: its beginning
    trained_layers: int  # the upper ones
    documents: int  # to train on, of each corpus
    corpora: tuple[str, ...]  # to train on, by their training parts
    validation: tuple[str, ...]  # left out of all training
    test: tuple[str, ...]  # left out of all training and of all choices
    limits: DocumentLimits  # of the left-out documents, as many of a corpus as there are examples
    budget: TrainingBudget  # its batch and its examples are documents
    rates: tuple[float, ...]  # of the encoder's tensors; LLN's have the recipe's multiples of it
    tuning_seeds: int
    name: str = "selectivity"
    methods: tuple[str, ...] = tuple(VARIANTS)

    def settings(self) -> Mapping[str, Any]:
        info = self._readers.model.info
        return {
            "sources": self._digests,
            "model": self.model,
            "weights": info.revision,
            "calibration": info.calibration,
            "block": self.block,
            "length": self.length,
            "trained_layers": self.trained_layers,
            "documents": self.documents,
            "validation": list(self.validation),
            "test": list(self.test),
            "limits": asdict(self._limits),
            "training": asdict(self.budget),
            "recipe": asdict(self._stage),
            "optimiser": DESCRIPTION,
        }

    def check(self) -> None:
        layers = self._readers.model.info.num_layers
        if not 1 <= self.trained_layers <= layers:
            raise InvalidInput(
                f"{self.model} has {layers} layers; {self.trained_layers} cannot be trained",
                code="trained_layers_out_of_range",
                param="trained_layers",
                limit=layers,
                actual=self.trained_layers,
            )
        tokens = self.budget.batch * self.length
        width = self._readers.model.info.dim
        needed = bytes_of_layers(tokens=tokens, layers=self.trained_layers, width=width)
        check_memory(self.name, needed)
        self._chunks.check()
        self._left_out("test")
        if self.tuning_seeds:
            self._left_out("validation")

    def measure(self, trial: Trial) -> Findings:
        part: Part = "validation" if trial.part == "tuning" else "test"
        variant = VARIANTS[trial.method]
        if not variant.trained:  # the same from every seed
            if (key := (trial.method, part)) not in self._untrained:
                self._untrained[key] = self._judge(self._layers(variant), variant.below, part)
            return self._untrained[key]
        layers = self._layers(variant)
        last = self._train(layers, variant.below, trial)
        figures, found = self._judge(layers, variant.below, part)
        return Findings({**figures, "last_training_loss": last}, found)

    def _layers(self, variant: Variant) -> UpperLayers:
        shares = None if variant.has_gate else self._calibrated_shares
        return UpperLayers(self._readers, variant, shares)

    def _train(self, layers: UpperLayers, below: Below, trial: Trial) -> float:
        generator = np.random.default_rng(trial.seed)
        next_loss = partial(self._chunks.loss, layers, below, self.budget.batch, generator)
        optimiser = self._optimiser(layers)
        return train(layers, self.budget, trial.rate, next_loss, optimisers=[optimiser])

    def _optimiser(self, layers: UpperLayers) -> AdamW:
        rates = self._stage.rates
        multiples = {part: rate / rates["encoder"] for part, rate in rates.items()}
        return AdamW(layers.groups(multiples), weight_decay=self.budget.weight_decay)

    def _judge(self, layers: UpperLayers, below: Below, part: Part) -> Findings:
        found = self._answers(layers, below, part)
        means = {figure: mean_of_means(list(answers.values())) for figure, answers in found.items()}
        return Findings(
            {SCORE: means["passages"], **means},
            {figure: by_document(answers) for figure, answers in found.items()},
        )

    def _answers(
        self, layers: UpperLayers, below: Below, part: Part
    ) -> Mapping[str, Mapping[str, Answers]]:
        """The answers by figure and corpus, of those that have such questions."""

        def read(ids: Tensor) -> Tensor:
            states: Tensor = layers(self._readers.states_below(ids, below), [0, len(ids)])
            return states

        asked = {one.name: one.ask(read, self._readers) for one in self._left_out(part)}
        by_figure = {
            figure: {name: one[figure] for name, one in asked.items() if len(one[figure].values)}
            for figure in next(iter(asked.values()))
        }
        return {figure: answers for figure, answers in by_figure.items() if answers}

    @property
    def _limits(self) -> DocumentLimits:
        return replace(self.limits, documents=self.budget.examples)

    @cached_property
    def _digests(self) -> dict[str, str]:
        left_out = (*self.validation, *self.test)
        whole = {name: digest_in_order([load_corpus(name).documents]) for name in left_out}
        return {**digests(self.corpora), **whole}

    @cached_property
    def _untrained(self) -> dict[tuple[str, Part], Findings]:
        return {}

    @cached_property
    def _stage(self) -> Stage:
        [stage] = load_recipe(_RECIPE)
        return stage

    @cached_property
    def _readers(self) -> Readers:
        config = EngineConfig(device="cpu", num_threads=torch.get_num_threads())
        model = load_model(self.model, attention="lln_diag", config=config)
        return Readers(model, block=self.block, trained_layers=self.trained_layers)

    @cached_property
    def _chunks(self) -> KnownChunks:
        sources = {name: self._training_documents(name) for name in self.corpora}
        return KnownChunks(sources, self._readers, self._stage, self.length)

    def _training_documents(self, corpus: str) -> list[Document]:
        """The first in the corpus's training part that are long enough, evenly spread."""
        least = _CHARACTERS_OF_A_TOKEN * self.length
        long = [one for one in parts_of(corpus)["training"] if len(one.body) >= least]
        return long[:: max(1, len(long) // self.documents)][: self.documents]

    @cached_property
    def _calibrated_shares(self) -> list[Tensor]:
        variant = VARIANTS["lln_diag"]
        document = self._chunks.a_document()
        states = self._readers.states_below(document, variant.below)
        return UpperLayers(self._readers, variant).mean_shares(states)

    def _left_out(self, part: Part) -> list[LeftOutCorpus]:
        if part not in self._corpora_of:
            names = self.validation if part == "validation" else self.test
            self._corpora_of[part] = read_left_out(names, self._readers, self._limits)
        return self._corpora_of[part]

    @cached_property
    def _corpora_of(self) -> dict[Part, list[LeftOutCorpus]]:
        return {}
