"""Memory of a diagnosis besides its text, counted before the diagnosis begins."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
import torch

from engine.analysis.diagnosis_plan import instrument_bytes, plan_diagnosis
from engine.analysis.layer_capture import capture_at_once, capture_bytes, head_view
from engine.async_engine import AsyncEngine
from engine.config import EngineConfig
from engine.diagnostics.lln_diag import MAX_BUFFER_BYTES, DiagWeightBuffer
from engine.errors import InsufficientMemory
from engine.model.embedding_model import EmbeddingModel


@pytest.mark.parametrize("tokens", [7, 512, 600, 2_000, 4_097])
@pytest.mark.parametrize("mode", ["auto", "exact"])
def test_a_layer_buffer_takes_the_bytes_counted(
    tokens: int, mode: str, default_model: EmbeddingModel
) -> None:
    effort = plan_diagnosis(default_model, None, None, None, mode).effort
    ids = torch.from_numpy(np.random.default_rng(0).integers(1000, 20_000, tokens))
    with torch.inference_mode():
        step = next(capture_at_once(default_model.encoder, ids, [0, tokens]))
        view = head_view(default_model, step)
        buffer = DiagWeightBuffer()
        buffer.open_for(view, effort)
    assert buffer.weights is not None
    of_factors = 2 * view.q.numel() * buffer.weights.itemsize
    counted = instrument_bytes(default_model, tokens, effort)
    assert buffer.weights.nbytes + of_factors == counted <= MAX_BUFFER_BYTES


def test_softmax_needs_no_buffer(published_model: EmbeddingModel) -> None:
    effort = plan_diagnosis(published_model, None, None, None, "auto").effort
    assert instrument_bytes(published_model, 4_096, effort) == 0


def test_the_buffer_counts_towards_the_limit_of_a_diagnosis(
    default_model: EmbeddingModel, long_text: str
) -> None:
    text = long_text[:9_000]
    tokens = default_model.tokenizer.encode_batch([text])[0].num_tokens
    limit = capture_bytes(default_model.encoder, tokens) + 1
    config = EngineConfig(device="cpu", max_sweep_bytes=limit)

    async def scenario() -> None:
        async with AsyncEngine([default_model], config=config) as engine:
            await engine.diagnose(text)

    with pytest.raises(InsufficientMemory) as caught:
        asyncio.run(scenario())
    assert caught.value.limit == limit
