"""sentence-transformers, as its documentation uses it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from sentence_transformers import SentenceTransformer

MAX_TOKENS = 512  # all its position table holds; the published setting is 256


class SentenceTransformersRival:
    def __init__(self, folder: Path) -> None:
        self._model = SentenceTransformer(str(folder), device="cpu")
        self._model.max_seq_length = MAX_TOKENS

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        vectors: NDArray[np.float32] = self._model.encode(list(texts), show_progress_bar=False)
        return vectors
