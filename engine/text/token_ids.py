"""Token ids: the special ones of a tokenizer, and those of a caller as an array."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import (
    Encoding,
    Tokenizer,
)

from engine.errors import CheckpointError, InvalidInput
from engine.types import Ids

_IDS_AT_ONCE = 65_536


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


def as_integers(ids: Sequence[int] | Ids, *, param: str | None) -> NDArray[np.integer[Any]]:
    try:
        array = _as_array(ids)
    except ValueError:  # lists of several lengths or depths, or booleans
        array = np.zeros((0, 0))
    if array.size == 0 and array.ndim == 1:
        return np.zeros(0, dtype=np.int32)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise InvalidInput(
            "token ids must be a flat list of integers of at most 64 bits",
            code="invalid_token_id",
            param=param,
        )
    return array


def _as_array(ids: Sequence[int] | Ids) -> NDArray[Any]:
    """A part at a time: other threads cannot run while a list is turned into an array."""
    if isinstance(ids, np.ndarray):
        return ids
    starts = range(0, max(len(ids), 1), _IDS_AT_ONCE)
    parts = [_without_booleans(ids[start : start + _IDS_AT_ONCE]) for start in starts]
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _without_booleans(ids: Sequence[int]) -> NDArray[Any]:
    """numpy takes them for 0 and 1 if they are among numbers."""
    if bool in set(map(type, ids)):
        raise ValueError("a boolean is no token id")
    return np.asarray(ids)
