"""What a diagnosis keeps beside its text, and that it is counted before it begins."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
import torch

from engine.config import EngineConfig
from engine.diagnose import kept_between_instruments
from engine.diagnosis_plan import plan_diagnosis
from engine.diagnostics.heads import KEPT_BYTES
from engine.diagnostics.kept import LayerRoom
from engine.engine import AsyncEngine
from engine.errors import InsufficientMemory
from engine.layer_states import at_once, diagnosis_bytes, head_view
from engine.model.embedding_model import EmbeddingModel


@pytest.mark.parametrize("tokens", [7, 512, 600, 2_000, 4_097])
@pytest.mark.parametrize("mode", ["auto", "exact"])
def test_the_room_of_a_layer_is_within_what_is_counted(
    tokens: int, mode: str, default_model: EmbeddingModel
) -> None:
    effort = plan_diagnosis(default_model, None, None, None, mode).effort
    ids = torch.from_numpy(np.random.default_rng(0).integers(1000, 20_000, tokens))
    with torch.inference_mode():
        step = next(at_once(default_model.encoder, ids, [0, tokens]))
        view = head_view(default_model, step)
        room = LayerRoom(KEPT_BYTES)
        room.open_for(view, effort)
    assert room.weights is not None
    of_factors = 2 * view.q.numel() * room.weights.itemsize
    counted = kept_between_instruments(default_model, tokens, effort)
    assert room.weights.nbytes + of_factors == counted <= KEPT_BYTES


def test_nothing_is_kept_of_softmax(published_model: EmbeddingModel) -> None:
    effort = plan_diagnosis(published_model, None, None, None, "auto").effort
    assert kept_between_instruments(published_model, 4_096, effort) == 0


def test_a_diagnosis_is_refused_for_what_it_keeps_too(
    default_model: EmbeddingModel, long_text: str
) -> None:
    text = long_text[:9_000]
    tokens = default_model.tokenizer.encode_batch([text])[0].num_tokens
    limit = diagnosis_bytes(default_model.encoder, tokens) + 1
    config = EngineConfig(device="cpu", max_sweep_bytes=limit)

    async def scenario() -> None:
        async with AsyncEngine([default_model], config=config) as engine:
            await engine.diagnose(text)

    with pytest.raises(InsufficientMemory) as caught:
        asyncio.run(scenario())
    assert caught.value.limit == limit
