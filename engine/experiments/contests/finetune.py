"""A converted model fine-tuned on labelled mail with each kind of attention.

Softmax begins from the published weights, LLN+Diag and its blocks alone from the converted ones.
The upper layers and a linear head on the pooled vector are trained.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional as F

from engine.config import EngineConfig
from engine.experiments.contest import SCORE
from engine.experiments.contests.tokens import SEED_OF_EXAMPLES
from engine.experiments.tasks import labelled_mail
from engine.experiments.tasks.labelled_mail import CLASSES, Mail
from engine.experiments.tasks.task import Part
from engine.experiments.training import DESCRIPTION, TrainingBudget, train
from engine.experiments.training_memory import bytes_of_layers, check_memory
from engine.experiments.trials import Trial
from engine.model.embedding_model import EmbeddingModel, build_encoder, load_model
from engine.model.encoder import Encoder
from engine.model.pooling import pool, whole_texts
from engine.model.weight_overrides import dense, named_tensors


class Classifier(nn.Module):
    """The encoder, of which the upper layers can be trained, and a head."""

    def __init__(self, model: EmbeddingModel, trained_layers: int) -> None:
        super().__init__()
        self._model, self._own = model, dense(model.encoder.weights, {})
        first = len(self._own.layers) - trained_layers
        upper = tuple(f"layers.{layer}." for layer in range(first, len(self._own.layers)))
        self._trained = {
            name: nn.Parameter(tensor.detach().clone())
            for name, tensor in named_tensors(self._own)
            if name.startswith(upper)
        }
        self._registered = nn.ParameterList(self._trained.values())
        self.head = nn.Linear(self._own.width, len(CLASSES))

    def forward(self, texts: Sequence[Tensor]) -> Tensor:
        """The logits of each text's ids: [B, classes]."""
        bounds = [0, *accumulate(len(text) for text in texts)]
        *_, states = self._encoder().walk(torch.cat(list(texts)), bounds)
        vectors = pool(states, whole_texts(bounds), self._model.checkpoint.pooling)
        logits: Tensor = self.head(vectors)
        return logits

    def _encoder(self) -> Encoder:
        weights, attention = dense(self._own, self._trained), self._model.encoder.attention
        is_calibrated = self._model.info.calibration is not None
        return build_encoder(weights, attention, self._model.calibration if is_calibrated else None)


@dataclass(frozen=True, kw_only=True)
class FinetuneContest:
    model: str
    length: int  # tokens of a text at most; more than a block, or LLN does nothing
    trained_layers: int
    budget: TrainingBudget
    rates: tuple[float, ...]
    tuning_seeds: int
    folder: str = ""  # of the mail; that of the package if there is none
    name: str = "finetune"
    methods: tuple[str, ...] = ("softmax", "lln_diag", "block_diagonal")

    def settings(self) -> Mapping[str, Any]:
        info = self._load("lln_diag").info
        return {
            "sources": {labelled_mail.PACKAGE: labelled_mail.digest(self.mail)},
            "model": self.model,
            "weights": info.revision,
            "calibration": info.calibration,
            "length": self.length,
            "trained_layers": self.trained_layers,
            "training": asdict(self.budget),
            "optimiser": DESCRIPTION,
        }

    def check(self) -> None:
        labelled_mail.digest(self.mail)
        width = self._load("softmax").info.dim
        tokens = self.budget.batch * self.length
        needed = bytes_of_layers(tokens=tokens, layers=self.trained_layers, width=width)
        check_memory(self.name, needed)

    @property
    def mail(self) -> Path:
        return Path(self.folder) if self.folder else labelled_mail.data_folder()

    def measure(self, trial: Trial) -> Mapping[str, float]:
        torch.manual_seed(trial.seed)
        model = self._load(trial.method)
        classifier = Classifier(model, self.trained_layers)
        generator = Generator().manual_seed(trial.seed)

        def next_loss() -> Tensor:
            mails = labelled_mail.draw(self.mail, self.budget.batch, generator, "training")
            logits = classifier([self._ids(model, mail) for mail in mails])
            return F.cross_entropy(logits, torch.tensor([mail.label for mail in mails]))

        last = train(classifier, self.budget, trial.rate, next_loss)
        accuracy = self._judge(
            model, classifier, "validation" if trial.part == "tuning" else "test"
        )
        return {SCORE: accuracy, "accuracy": accuracy, "last_training_loss": last}

    @torch.no_grad()
    def _judge(self, model: EmbeddingModel, classifier: Classifier, part: Part) -> float:
        generator = Generator().manual_seed(SEED_OF_EXAMPLES[part])
        mails = labelled_mail.draw(self.mail, self.budget.examples, generator, part)
        found = (int(classifier([self._ids(model, mail)]).argmax()) for mail in mails)
        right = sum(one == mail.label for one, mail in zip(found, mails, strict=True))
        return right / len(mails)

    def _ids(self, model: EmbeddingModel, mail: Mail) -> Tensor:
        """The ids of as much of the text's beginning as is read."""
        (encoded,) = model.tokenizer.encode_batch([mail.text])
        end = len(encoded.ids) - encoded.num_suffix
        kept = min(end, self.length - encoded.num_suffix)
        ids = torch.as_tensor(encoded.ids.astype("int64"))
        return torch.cat([ids[:kept], ids[end:]])

    def _load(self, attention: str) -> EmbeddingModel:
        config = EngineConfig(device="cpu", num_threads=torch.get_num_threads())
        return load_model(self.model, attention=attention, config=config)
