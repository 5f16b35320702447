"""Texts in padded batches, longest first, as sentence-transformers makes them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

BATCH_TEXTS = 32
MAX_TOKENS = 512

Ids = NDArray[np.int64]
Run = Callable[[Ids, Ids], NDArray[np.float32]]
"""Unit vectors of token ids and their mask, [texts, tokens] each."""


class PaddedBatches:
    def __init__(self, folder: Path, run: Run) -> None:
        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._tokenizer.enable_truncation(MAX_TOKENS)
        self._tokenizer.enable_padding()
        self._run = run

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        longest_first = np.argsort([-len(text) for text in texts], kind="stable")
        vectors = np.concatenate(
            [
                self._run(*self.ids_and_mask([texts[index] for index in batch]))
                for batch in np.split(longest_first, range(BATCH_TEXTS, len(texts), BATCH_TEXTS))
            ]
        )
        in_order = np.empty_like(vectors)
        in_order[longest_first] = vectors
        return in_order

    def ids_and_mask(self, texts: Sequence[str]) -> tuple[Ids, Ids]:
        encodings = self._tokenizer.encode_batch_fast(list(texts))
        return (
            np.array([encoding.ids for encoding in encodings]),
            np.array([encoding.attention_mask for encoding in encodings]),
        )
