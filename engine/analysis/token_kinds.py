"""What the tokens of a text are, for instruments that ask what a head attends to."""

from __future__ import annotations

import unicodedata

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.diagnostics.head_kind import DELIMITER, SPECIAL, WORD
from engine.text.tokenizer import TextTokenizer

_MARKS_OF_PIECES = "Ġ▁Ċ"
"""How vocabularies write a space or a line end in a token."""


def token_kinds(tokenizer: TextTokenizer, ids: NDArray[np.int32]) -> Tensor:
    """Special, delimiter or word, of each token: [T]."""
    known, places = np.unique(ids, return_inverse=True)
    special = {*tokenizer.prefix_ids.tolist(), *tokenizer.suffix_ids.tolist()}
    kinds = [
        SPECIAL if number in special else DELIMITER if is_delimiter(token) else WORD
        for number, token in zip(known.tolist(), tokenizer.tokens_of(known), strict=True)
    ]
    return torch.tensor(kinds, dtype=torch.int8)[torch.from_numpy(places)]


def is_delimiter(token: str) -> bool:
    """Whether a token is nothing but punctuation, as its vocabulary writes it."""
    written = token.removeprefix("##") if len(token) > 2 else token
    written = written.strip(_MARKS_OF_PIECES)
    return bool(written) and all(unicodedata.category(one).startswith("P") for one in written)
