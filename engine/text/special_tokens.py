"""The special tokens that a tokenizer puts around content."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain

import numpy as np
from tokenizers import Encoding, Tokenizer

from engine.errors import CheckpointError
from engine.types import Ids


def special_ids(tokenizer: Tokenizer, vocabulary: Iterable[str]) -> tuple[Ids, Ids]:
    """The special tokens before and after any content, found by encoding a sample."""
    sample = next(_samples(tokenizer, vocabulary), None)
    if sample is None:
        raise CheckpointError("the tokenizer has an empty vocabulary", code="invalid_tokenizer")
    mask = np.array(sample.special_tokens_mask, dtype=np.bool_)
    content = np.flatnonzero(~mask)
    first, last = int(content[0]), int(content[-1])
    ids = np.array(sample.ids, dtype=np.int32)
    return ids[:first], ids[last + 1 :]


def _samples(tokenizer: Tokenizer, vocabulary: Iterable[str]) -> Iterator[Encoding]:
    """Encodings with content. A tokenizer whose vocabulary lacks "a" may drop it."""
    num_special = tokenizer.num_special_tokens_to_add(is_pair=False)
    encodings = (tokenizer.encode(text) for text in chain(["a"], vocabulary))
    return (encoding for encoding in encodings if len(encoding) > num_special)
