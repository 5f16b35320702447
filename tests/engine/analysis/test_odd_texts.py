"""Diagnoses of texts that are no prose: every number finite and in its mathematical range."""

from __future__ import annotations

import inspect
import json
import math
import random
from collections.abc import Mapping, Sequence
from pydoc_data.topics import topics

import numpy as np
import pytest

from engine.attention_types import Diagnosis
from engine.config import EngineConfig
from engine.diagnostics import INSTRUMENTS
from engine.engine import Engine
from engine.model.embedding_model import EmbeddingModel

TEXTS = {
    "one letter": "a",
    "one word, many times": "the " * 540,
    "a comma, many times": ", " * 140,
    "two words in turn": "yes no " * 80,
    "Chinese": "注意力机制让每个词看到其他所有的词。" * 6,
    "Arabic": "كل كلمة تنظر إلى الكلمات الأخرى. " * 4,
    "emoji": "😀 🌍 🚀 " * 30,
    "code": inspect.getsource(json)[-500:],
    "digits": " ".join(str(number * number) for number in range(40)),
}
INF = math.inf
RANGES: Mapping[str, tuple[float, float | str]] = {
    "temperature": (0, 1e6),
    "entropy": (0, "log"),
    "bits": (0, "bits"),
    "lower": (0, "log"),
    "spectral_gap": (0, 1),
    "second_phase": (0, math.pi),
    "eigenvalue_moduli": (0, 1),
    "by_block": (0, 1),
    "stationary": (1, "tokens"),
    "top_mass": (0, 1),
    "lognormality": (0, INF),
    "within_rows": (0, INF),
    "kurtosis": (-2, "tokens"),
    "decile_gap": (0, 1),
    "effective_rank": (1, "tokens"),
    "entropy_rank": (1, "tokens"),
    "stable_rank": (1, "tokens"),
    "frobenius_norm": (1, "root"),
    "singular_values": (0, "root"),
    "mutual_information": (0, "log"),
    "log_squared_norm": (0, "log"),
    "energy": (0, INF),
    "share_of_bound": (0, 1),
    "head_scale": (0, "tokens"),
    "similarity": (0, 1),
    "cosines": (0, 1),
    "pruning": (0, INF),
    "attention_fisher": (0, 1),
    "eigenvalues": (0, 0.5),
    "weight_fisher": (0, INF),
    "trace_k": (0, INF),
    "softmax_divergence": (0, INF),
    "total_variation": (0, 1),
    "output_error": (0, INF),
    "by_part": (0, INF),
    "rank_collapse": (0, 1),
    "path_lengths": (0, 1),
    "residuals": (0, 1),
}
"""Of instruments and of what stands beside them; some limits depend on the number of tokens."""
ROUNDING = 1e-6


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
    tokens = found.tokens
    limits = {
        "log": math.log(tokens),
        "bits": math.log2(tokens),
        "root": math.sqrt(tokens),
        "tokens": tokens,
    }
    for one in found.instruments:
        check_range(one.instrument, one.values, one.error, limits)
        for part in one.beside:
            values = [layer for layer in part.values if layer is not None]
            errors = [layer for layer in part.error or () if layer is not None]
            check_range(part.name, values, errors, limits)


def check_range(
    name: str,
    values: Sequence[object],
    errors: Sequence[object] | None,
    limits: Mapping[str, float],
) -> None:
    low, high = RANGES.get(name, (-INF, INF))
    most = limits[high] if isinstance(high, str) else high
    for layer in values:
        numbers = np.asarray(layer, dtype=float)
        assert np.isfinite(numbers).all(), name
        assert numbers.min() >= low - ROUNDING * max(1, abs(low)), (name, numbers.min())
        assert numbers.max() <= most * (1 + ROUNDING), (name, numbers.max())
    for layer in errors or ():
        numbers = np.asarray(layer, dtype=float)
        assert np.isfinite(numbers).all(), name
        assert numbers.min() >= 0, name


@pytest.mark.slow
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("name", ["default_model", "published_model"])
def test_made_up_texts_of_any_length(
    name: str, seed: int, cpu_config: EngineConfig, request: pytest.FixtureRequest
) -> None:
    """3 to 4,000 tokens: repeated words, other scripts, code, prose, and these in turn."""
    model: EmbeddingModel = request.getfixturevalue(name)
    rng = random.Random(seed)
    text = made_up_text(
        rng, model, tokens=round(math.exp(rng.uniform(math.log(3), math.log(4_000))))
    )
    layers, heads = rng.sample(range(6), 2), rng.sample(range(12), 4)
    with Engine(model, config=cpu_config) as engine:
        for mode in ("auto", "sampled"):
            found = engine.diagnose(
                text, layers=layers, heads=heads, mode=mode, instruments=list(INSTRUMENTS)
            )
            assert found.left_out == (), (seed, found.tokens)
            check_ranges(found)


def made_up_text(rng: random.Random, model: EmbeddingModel, tokens: int) -> str:
    """Of about so many tokens."""
    sources = [*TEXTS.values(), inspect.getsource(inspect), topics["lambda"], topics["class"]]
    parts: list[str] = []
    count = 0
    while count < tokens:
        source = rng.choice(sources)
        start = rng.randrange(len(source))
        part = source[start : start + rng.randrange(1, 600)] * rng.choice((1, 1, 1, 40))
        parts.append(part[: 2 * (tokens - count)])  # at least a token in two characters, or so
        encoded = model.tokenizer.encode_batch([parts[-1]])[0]
        count += encoded.num_tokens - model.tokenizer.num_special
    return " ".join(parts)
