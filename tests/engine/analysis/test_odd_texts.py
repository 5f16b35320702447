"""Diagnoses of texts that are no prose: every number finite and in its mathematical range."""

from __future__ import annotations

import inspect
import json

import numpy as np
import pytest

from engine.config import EngineConfig
from engine.engine import Engine
from engine.model.embedding_model import EmbeddingModel
from engine.types import Diagnosis

TEXTS = {
    "one letter": "a",
    "one word, many times": "the " * 540,
    "a comma, many times": ", " * 140,
    "two words in turn": "yes no " * 80,
    "Chinese": "注意力机制让每个词看到其他所有的词。" * 12,
    "Arabic": "كل كلمة تنظر إلى الكلمات الأخرى. " * 12,
    "emoji": "😀 🌍 🚀 " * 40,
    "code": inspect.getsource(json)[-1_200:],
    "digits": " ".join(str(number * number) for number in range(70)),
}
PER_TOKEN = {"effective_rank", "stationary"}
"""Numbers of tokens: at least 1, at most all."""
SHARES = {"spectral_gap", "attention_fisher", "similarity"}


@pytest.mark.parametrize("text", list(TEXTS.values()), ids=list(TEXTS))
@pytest.mark.parametrize("name", ["default_model", "published_model"])
def test_every_number_is_finite_and_in_its_range(
    name: str, text: str, cpu_config: EngineConfig, request: pytest.FixtureRequest
) -> None:
    model: EmbeddingModel = request.getfixturevalue(name)
    with Engine(model, config=cpu_config) as engine:
        found = engine.diagnose(text, layers=[0, 5], heads=[0, 2, 7], mode="sampled")
    assert found.left_out == ()
    check_ranges(found)


def check_ranges(found: Diagnosis) -> None:
    rounding = 1e-6
    for one in found.instruments:
        numbers = np.array(one.values)
        assert np.isfinite(numbers).all(), one.instrument
        assert one.error is None or np.isfinite(one.error).all(), one.instrument
        for part in one.beside:
            known = [np.ravel(layer) for layer in part.values if layer is not None]
            assert np.isfinite(np.concatenate(known)).all(), (one.instrument, part.name)
        if one.instrument in PER_TOKEN:
            assert numbers.min() >= 1 - rounding, one.instrument
            assert numbers.max() <= found.tokens * (1 + rounding), one.instrument
        if one.instrument in SHARES:
            assert numbers.min() >= -rounding, one.instrument
            assert numbers.max() <= 1 + rounding, one.instrument
        if one.instrument in ("entropy", "mutual_information"):
            assert numbers.min() >= -rounding, one.instrument
            assert numbers.max() <= np.log(found.tokens) + rounding, one.instrument
