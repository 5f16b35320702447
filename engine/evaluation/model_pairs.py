"""Models trained alike, with LLN and without, each pair from a seed of its own.

What LLN contributes is a model minus its control. Over several pairs it is the mean of their
differences for each question, before the documents are drawn: the pairs are not drawn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from engine.errors import InvalidInput
from engine.evaluation.bootstrap import Answers, minus
from engine.model.embedding_model import EmbeddingModel


@dataclass(frozen=True)
class ModelPair:
    trained: str
    control: str

    def readings(self, how: str) -> tuple[str, str]:
        return f"{self.trained}, {how}", f"{self.control}, {how}"


def models_by_name(models: Sequence[EmbeddingModel]) -> dict[str, EmbeddingModel]:
    """Models by the names of their folders, which must differ."""
    named: dict[str, EmbeddingModel] = {}
    for model in models:
        name = Path(model.name).name
        if name in named:
            raise InvalidInput(
                f"two models are named {name}: rename a folder, so that they can be distinguished",
                code="equal_models",
                param="models",
                actual=name,
            )
        named[name] = model
    return named


def pairs_in_order(models: Mapping[str, EmbeddingModel]) -> list[ModelPair]:
    """Each model with its control, which comes next."""
    names = list(models)
    if not names or len(names) % 2:
        raise InvalidInput(
            "pairs are made of a trained model and its control, one after the other: an even "
            f"number of models after the first, not {len(names)}",
            code="unpaired_models",
            param="models",
            actual=len(names),
        )
    seen: dict[str, str] = {}
    for name, model in models.items():
        read_as = f"{model.info.revision} {model.info.calibration} {model.info.attention}"
        if read_as in seen:
            raise InvalidInput(
                f"{seen[read_as]} and {name} are the same model",
                code="equal_models",
                param="models",
                actual=name,
            )
        seen[read_as] = name
    return [ModelPair(*pair) for pair in zip(names[::2], names[1::2], strict=True)]


def difference_of(
    first: Mapping[str, Answers], second: Mapping[str, Answers]
) -> dict[str, Answers]:
    """The difference of two readings, question by question, of each corpus."""
    return {name: minus(answers, second[name]) for name, answers in first.items()}


def mean_difference(pairs: Sequence[Mapping[str, Answers]]) -> dict[str, Answers]:
    """The mean of the pairs' differences, question by question, of each corpus."""
    return {
        name: Answers(np.mean([one[name].values for one in pairs], axis=0), answers.documents)
        for name, answers in pairs[0].items()
    }
