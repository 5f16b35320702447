"""Small checkpoints as models with LLN."""

from __future__ import annotations

from pathlib import Path

import torch

from engine.checkpoint.calibration import Calibration
from engine.config import EngineConfig
from engine.model.embedding_model import EmbeddingModel, load_model


def calibrated(
    folder: Path, *, block_size: int, num_sinks: tuple[int, int], dtype: str = "float32"
) -> EmbeddingModel:
    """A small checkpoint as LLN+Diag with non-trivial numbers."""
    published = load_model(str(folder), config=EngineConfig(device="cpu", dtype=dtype))
    info = published.info
    heads = (info.num_layers, info.num_heads)
    calibration = Calibration(
        alpha=torch.full(heads, 0.7),
        beta=torch.full(heads, 0.5),
        mix=torch.full(heads, 0.3),
        key_shift=torch.full((*heads, info.dim // info.num_heads), 0.1),
        block_size=block_size,
        num_sinks=num_sinks,
        weights_sha256=info.revision,
    )
    return published.with_calibration(calibration)
