"""A text as the model reads it, with the characters that each token stands for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from engine.types import Ids, Offsets


@dataclass(frozen=True, eq=False)
class Encoded:
    """One text as the model reads it: special tokens, content, special tokens."""

    ids: Ids  # [num_tokens]
    num_prefix: int
    num_suffix: int
    read_offsets: Callable[[], Offsets] | None
    """Computes the offsets; None for token input, which has no characters."""

    num_prompt: int = 0
    """Tokens of the prompt, if `num_prefix` includes them."""

    @property
    def num_tokens(self) -> int:
        return len(self.ids)

    @property
    def num_content(self) -> int:
        return len(self.ids) - self.num_prefix - self.num_suffix

    @property
    def content(self) -> Ids:
        """The ids between the prefix and the suffix."""
        return self.ids[self.num_prefix : len(self.ids) - self.num_suffix]

    @property
    def has_characters(self) -> bool:
        return self.read_offsets is not None

    @cached_property
    def offsets(self) -> Offsets:
        """[num_tokens, 2] characters of the original text; (0, 0) for special tokens.

        Computed on first use, since most embeddings never need them.
        """
        if self.read_offsets is None:
            return no_offsets(len(self.ids))
        return self.read_offsets()


def no_offsets(num_tokens: int) -> Offsets:
    return np.zeros((num_tokens, 2), dtype=np.int32)
