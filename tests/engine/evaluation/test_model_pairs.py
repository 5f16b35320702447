"""Pairs of models: what LLN contributes in each, and in the mean over them."""

from __future__ import annotations

import numpy as np
import pytest

from engine.checkpoint.calibration import Calibration
from engine.errors import InvalidInput
from engine.evaluation.bootstrap import Answers, interval
from engine.evaluation.model_pairs import (
    ModelPair,
    difference_of,
    mean_difference,
    models_by_name,
    pairs_in_order,
)
from engine.model.embedding_model import EmbeddingModel


@pytest.fixture
def model(teacher: EmbeddingModel, calibration: Calibration) -> EmbeddingModel:
    return teacher.with_calibration(calibration)


def test_pairs_are_in_order(model: EmbeddingModel) -> None:
    control = model.with_attention("block_diagonal")
    assert pairs_in_order({"one": model, "its control": control}) == [
        ModelPair("one", "its control")
    ]


def test_models_that_are_no_pairs(model: EmbeddingModel) -> None:
    for models in ({}, {"one": model}):
        with pytest.raises(InvalidInput, match="even number") as error:
            pairs_in_order(models)
        assert (error.value.code, error.value.actual) == ("unpaired_models", len(models))
    with pytest.raises(InvalidInput, match="one and two are the same model") as error:
        pairs_in_order({"one": model, "two": model})
    assert error.value.code == "equal_models"
    with pytest.raises(InvalidInput) as error:
        models_by_name([model, model])
    assert error.value.code == "equal_models"


def test_seeds_are_averaged_before_documents_are_drawn() -> None:
    generator = np.random.default_rng(0)
    documents = np.repeat(np.arange(20), 3)
    effect = generator.normal(0.1, 0.1, 60)
    noise = generator.normal(0, 1, 60)
    control = {"a": Answers(np.zeros(60), documents)}
    pairs = [
        difference_of({"a": Answers(effect + sign * noise, documents)}, control) for sign in (1, -1)
    ]
    mean = mean_difference(pairs)["a"]
    assert mean.values == pytest.approx(effect)
    averaged, single = interval(mean), interval(pairs[0]["a"])
    assert averaged is not None
    assert single is not None
    assert averaged.high - averaged.low < (single.high - single.low) / 3
