"""What becomes of a student's attention as it learns: temperature, entropy and spectral gap."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np
import torch

from engine.adapt.batches import Batch
from engine.diagnostics import Effort, measure
from engine.diagnostics.base import Floats
from engine.layer_states import at_once, head_view
from engine.model.embedding_model import EmbeddingModel

WATCHED = ("temperature", "entropy", "spectral_gap")
LayerMeans: TypeAlias = Mapping[str, Sequence[float | None]]
"""By instrument: the mean over each layer's heads; None where no head has a reading."""

_EFFORT = Effort(sampled_rows=64, max_exact_tokens=256, tolerance=0.05, max_basis=96)


@torch.no_grad()
def attention_of(model: EmbeddingModel, text: Batch) -> LayerMeans:
    """On one text, which should stay the same throughout a run."""
    found: dict[str, list[float | None]] = {name: [] for name in WATCHED}
    for step in at_once(model.encoder, text.ids.to(model.encoder.device), text.bounds):
        # A window that slides is a band, which no instrument of heads reads.
        slides = model.encoder.attention[step.index].kind == "sliding_window"
        readings = {} if slides else measure(head_view(model, step), WATCHED, _EFFORT)
        for name in WATCHED:
            found[name].append(_mean(readings[name].values) if name in readings else None)
    return found


def _mean(values: Floats) -> float | None:
    known = values[np.isfinite(values)]
    return float(known.mean()) if known.size else None
