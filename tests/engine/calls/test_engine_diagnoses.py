"""Diagnoses by an engine: of some layers and heads, refused ones, and what they hold."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from engine.async_engine import AsyncEngine
from engine.config import EngineConfig
from engine.engine import Engine
from engine.errors import (
    InsufficientMemory,
    LLNError,
)
from engine.model.embedding_model import EmbeddingModel
from tests.engine.serving import serve


def test_diagnosis_of_some_layers_and_heads(
    shipped_models: dict[str, EmbeddingModel], long_text: str
) -> None:
    found = serve(
        shipped_models.values(),
        lambda engine: engine.diagnose(long_text[:3000], layers=[0, 5], heads=[1, 2, 3]),
    )
    assert (found.layers, found.heads) == ((0, 5), (1, 2, 3))
    readings = {reading.instrument: reading for reading in found.instruments}
    assert {"temperature", "entropy", "spectral_gap"} <= set(readings)
    entropies = np.array(readings["entropy"].values)
    assert entropies.shape == (2, 3)
    assert (entropies > 0).all()
    assert (entropies < np.log(found.tokens)).all()


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ({"layers": [6]}, "invalid_layers"),
        ({"heads": [-1]}, "invalid_heads"),
        ({"layers": []}, "invalid_layers"),
        ({"instruments": ["thermometer"]}, "unknown_instrument"),
    ],
    ids=str,
)
def test_diagnoses_that_are_refused(
    arguments: dict[str, list[int]], code: str, default_model: EmbeddingModel
) -> None:
    with pytest.raises(LLNError) as caught:
        Engine(default_model).diagnose("a text", **arguments)  # type: ignore[arg-type]
    assert caught.value.code == code


def test_what_a_diagnosis_holds_has_to_fit_in_memory(
    shipped_models: dict[str, EmbeddingModel],
) -> None:
    config = EngineConfig(device="cpu", max_sweep_bytes=16 << 20)

    async def work(engine: AsyncEngine) -> None:
        with pytest.raises(InsufficientMemory) as caught:
            await engine.diagnose("a few words " * 1_000)
        assert caught.value.limit == 16 << 20
        both = [engine.diagnose("a few words " * 60, layers=[0]) for _ in range(2)]
        assert len(await asyncio.gather(*both)) == 2

    serve(shipped_models.values(), work, config=config)
