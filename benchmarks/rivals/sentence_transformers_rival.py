"""sentence-transformers, as its documentation uses it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from sentence_transformers import SentenceTransformer

from benchmarks.rivals.silence import silence_loading

MAX_TOKENS = 512  # all its position table holds; the published setting is 256


class SentenceTransformersRival:
    def __init__(self, folder: Path, device: torch.device) -> None:
        silence_loading()
        dtype = "float32" if device.type == "cpu" else "bfloat16"
        model_kwargs = {"torch_dtype": dtype}
        self._model = SentenceTransformer(
            str(folder), device=str(device), model_kwargs=model_kwargs
        )
        self._model.max_seq_length = MAX_TOKENS
        self._batch_size = 32 if device.type == "cpu" else 256

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        vectors: NDArray[np.float32] = self._model.encode(
            list(texts), batch_size=self._batch_size, show_progress_bar=False
        )
        return vectors
