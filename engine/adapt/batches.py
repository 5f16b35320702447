"""Training data: windows of real documents, the same at every step of every run with one seed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.errors import InvalidInput
from engine.text.tokenizer import TextTokenizer
from engine.types import Ids

Span: TypeAlias = tuple[int, int]

_PIECE = 512


@dataclass(frozen=True)
class Batch:
    """Packed sequences, each one window of one document between its special tokens."""

    ids: Tensor  # [T]
    bounds: list[int]

    @property
    def spans(self) -> list[Span]:
        return list(pairwise(self.bounds))


class TokenCorpus:
    """Documents as ids without special tokens, one after the other."""

    def __init__(self, documents: Sequence[Ids], prefix: Ids, suffix: Ids) -> None:
        self._ids = np.concatenate([*documents, np.zeros(0, np.int32)])
        self._starts = np.cumsum([0, *(len(document) for document in documents)])
        self._prefix, self._suffix = prefix, suffix

    @classmethod
    def of(cls, texts: Sequence[str], tokenizer: TextTokenizer) -> TokenCorpus:
        encoded = [
            item
            for start in range(0, len(texts), _PIECE)
            for item in tokenizer.encode_batch(texts[start : start + _PIECE])
        ]
        return cls([item.content for item in encoded], tokenizer.prefix_ids, tokenizer.suffix_ids)

    @property
    def num_tokens(self) -> int:
        return len(self._ids)

    @property
    def num_special(self) -> int:
        """Of each window."""
        return len(self._prefix) + len(self._suffix)

    @property
    def longest(self) -> int:
        """Tokens of the longest window there is, special ones included."""
        return int(np.diff(self._starts).max(initial=0)) + self.num_special

    def batch(self, length: int, count: int, generator: np.random.Generator) -> Batch:
        """`count` windows of `length` tokens, specials included, from documents long enough.

        A document's chance is its number of windows, so that every token is as likely as any.
        """
        content = length - self.num_special
        room = np.diff(self._starts) - content + 1
        long_enough = np.flatnonzero(room > 0)
        if not len(long_enough):
            raise InvalidInput(
                f"no document has {length} tokens",
                code="too_little_text",
                limit=int(np.diff(self._starts).max(initial=0)),
                actual=length,
            )
        chances = room[long_enough] / room[long_enough].sum()
        chosen = generator.choice(long_enough, size=count, p=chances)
        windows = [self._window(int(document), content, generator) for document in chosen]
        return Batch(
            torch.from_numpy(np.concatenate(windows)), list(range(0, count * length + 1, length))
        )

    def _window(
        self, document: int, content: int, generator: np.random.Generator
    ) -> NDArray[np.int64]:
        first, end = int(self._starts[document]), int(self._starts[document + 1])
        start = int(generator.integers(first, end - content + 1))
        parts = (self._prefix, self._ids[start : start + content], self._suffix)
        window: NDArray[np.int64] = np.concatenate(parts).astype(np.int64)
        return window
