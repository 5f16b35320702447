"""Token ids of many documents, and windows drawn from them: a seed draws the same in every run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.errors import InvalidInput
from engine.text.tokenizer import TextTokenizer
from engine.types import Ids

TokenRange: TypeAlias = tuple[int, int]
"""The place of the first token, and of the one after the last."""

_TEXTS_AT_ONCE = 512  # for the tokenizer


@dataclass(frozen=True)
class Batch:
    """Sequences packed one after the other, each a text between its special tokens."""

    ids: Tensor  # [T]
    bounds: list[int]

    @property
    def spans(self) -> list[TokenRange]:
        return list(pairwise(self.bounds))


class Drawn(NamedTuple):
    """Windows of documents that were drawn at random."""

    windows: Batch
    documents: NDArray[np.int64]  # the number of each window's document


def too_little_text(message: str, *, shortest: int, longest: int) -> InvalidInput:
    """The error of data whose longest document is too short for what a stage asks of it."""
    return InvalidInput(
        message, code="too_little_text", param="data", limit=shortest, actual=longest
    )


def packed(texts: Sequence[Ids], tokenizer: TextTokenizer) -> Batch:
    """Texts without special tokens, each put between its own."""
    whole = [tokenizer.between_special(text) for text in texts]
    bounds = list(accumulate((len(text) for text in whole), initial=0))
    return Batch(torch.from_numpy(np.concatenate(whole).astype(np.int64)), bounds)


class TokenCorpus:
    """Token ids of many documents, without special tokens, one after the other."""

    def __init__(self, documents: Sequence[Ids], prefix: Ids, suffix: Ids) -> None:
        self._ids = np.concatenate([*documents, np.zeros(0, np.int32)])
        self._starts = np.cumsum([0, *(len(document) for document in documents)])
        self._prefix, self._suffix = prefix, suffix

    @classmethod
    def of(cls, texts: Sequence[str], tokenizer: TextTokenizer) -> TokenCorpus:
        encoded = [
            item
            for start in range(0, len(texts), _TEXTS_AT_ONCE)
            for item in tokenizer.encode_batch(texts[start : start + _TEXTS_AT_ONCE])
        ]
        return cls([item.content for item in encoded], tokenizer.prefix_ids, tokenizer.suffix_ids)

    @property
    def num_tokens(self) -> int:
        return len(self._ids)

    @property
    def num_special(self) -> int:
        """The number of special tokens of a window."""
        return len(self._prefix) + len(self._suffix)

    @property
    def longest(self) -> int:
        """The length of the longest window, special tokens included."""
        return int(np.diff(self._starts).max(initial=0)) + self.num_special

    def batch(self, length: int, count: int, generator: np.random.Generator) -> Batch:
        """Draw `count` windows of `length` tokens, special tokens included.

        A document's chance is its number of windows, which makes all windows equally likely.
        """
        return self.draw(length, count, generator).windows

    def draw(
        self,
        length: int,
        count: int,
        generator: np.random.Generator,
        *,
        leave_out: Sequence[int] | NDArray[np.int64] = (),
    ) -> Drawn:
        """The same with the documents that they are of; none are of those that are left out."""
        content = length - self.num_special
        sizes = np.diff(self._starts)
        sizes[np.asarray(leave_out, dtype=np.int64)] = 0
        room = sizes - content + 1
        long_enough = np.flatnonzero(room > 0)
        if not len(long_enough):
            other = "other " if len(leave_out) else ""
            raise InvalidInput(
                f"no {other}document has {length} tokens",
                code="too_little_text",
                limit=int(sizes.max(initial=0)),
                actual=length,
            )
        chances = room[long_enough] / room[long_enough].sum()
        chosen = generator.choice(long_enough, size=count, p=chances)
        windows = [self._window(int(document), content, generator) for document in chosen]
        return Drawn(
            Batch(
                torch.from_numpy(np.concatenate(windows)),
                list(range(0, count * length + 1, length)),
            ),
            chosen,
        )

    def _window(
        self, document: int, content: int, generator: np.random.Generator
    ) -> NDArray[np.int64]:
        first, end = int(self._starts[document]), int(self._starts[document + 1])
        start = int(generator.integers(first, end - content + 1))
        parts = (self._prefix, self._ids[start : start + content], self._suffix)
        window: NDArray[np.int64] = np.concatenate(parts).astype(np.int64)
        return window
