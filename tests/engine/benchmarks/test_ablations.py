"""The default model with one part removed."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from benchmarks.ablation_models import AS_SERVED, ablations_of
from engine.model.embedding_model import EmbeddingModel


@pytest.mark.long
def test_a_part_taken_away_shows_beyond_a_block_and_in_no_shorter_text(
    shallow_model: EmbeddingModel,
) -> None:
    models = ablations_of(shallow_model)
    assert {"without maps", "without gate", "without sinks"} <= set(models)
    assert {"blocks of 256", "blocks of 512"} <= set(models), "each of them is served to some"
    long, short = ({name: _states(one, n) for name, one in models.items()} for n in (800, 60))
    changes = {name: (long[name] - long[AS_SERVED]).abs().max() for name in models}
    served = _states(models[AS_SERVED], 4_200)
    for name in [name for name, change in changes.items() if change <= 1e-2]:
        longer = served if name == AS_SERVED else _states(models[name], 4_200)
        changes[name] = (longer - served).abs().max()
    assert bool(torch.isfinite(torch.stack(list(changes.values()))).all()), changes
    for name in models:
        assert (changes[name] > 1e-2) == (name != AS_SERVED), name
        if name != "LLN alone":  # which is softmax for no text
            torch.testing.assert_close(short[name], short[AS_SERVED], rtol=1e-4, atol=1e-4)


@torch.inference_mode()
def _states(model: EmbeddingModel, num_tokens: int) -> Tensor:
    return model.encoder(torch.arange(2000, 2000 + num_tokens), [0, num_tokens])
