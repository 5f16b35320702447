"""The default model with one part taken away."""

from __future__ import annotations

import torch
from torch import Tensor

from engine.adapt.ablations import AS_SERVED, ablations_of
from engine.model.embedding_model import EmbeddingModel


def test_a_part_taken_away_shows_beyond_a_block_and_in_no_shorter_text(
    default_model: EmbeddingModel,
) -> None:
    models = ablations_of(default_model)
    assert {"without maps", "without gate", "without sinks", "blocks of 256"} <= set(models)
    long, short = ({name: _states(one, n) for name, one in models.items()} for n in (800, 60))
    for name in models:
        assert bool(torch.isfinite(long[name]).all()), name
        is_another = bool((long[name] - long[AS_SERVED]).abs().max() > 1e-2)
        assert is_another == (name != AS_SERVED), name
        if name != "LLN alone":  # which is softmax for no text
            torch.testing.assert_close(short[name], short[AS_SERVED], rtol=1e-4, atol=1e-4)


@torch.inference_mode()
def _states(model: EmbeddingModel, num_tokens: int) -> Tensor:
    return model.encoder(torch.arange(2000, 2000 + num_tokens), [0, num_tokens])
