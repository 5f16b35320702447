"""A tokenizer's vocabulary, and whether a caller's token ids can be of it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.errors import InvalidInput, shown
from engine.types import Ids

SEND_TEXT = "send the text itself (LangChain's OpenAIEmbeddings: check_embedding_ctx_length=False)"
"""The advice where token ids are those of another tokenizer."""

_UNUSED = re.compile(r"\[unused\d+\]")
"""BERT's vocabularies have places that their tokenizers never write."""

_UNUSED_START = "[unused"
"""Few tokens begin with it, and this is tried sooner than a pattern."""

_IDS_AT_ONCE = 65_536


class Vocabulary:
    def __init__(self, ids_of_tokens: Mapping[str, int]) -> None:
        self.size = 1 + max(ids_of_tokens.values(), default=-1)
        self._unused = np.zeros(self.size, np.bool_)  # [size]
        self._unused[_unused_ids(ids_of_tokens)] = 1

    def checked_ids(self, ids: Sequence[int] | Ids, *, param: str | None = None) -> Ids:
        """The ids as an array. Raises if one is not in the vocabulary, or can only be another
        tokenizer's."""
        array = _as_integers(ids, param=param)
        self._check_range(array, param)
        self._check_used(array, param)
        return array.astype(np.int32)

    def _check_range(self, ids: NDArray[np.integer[Any]], param: str | None) -> None:
        outside = (ids < 0) | (ids >= self.size)
        if not outside.any():
            return
        position = int(outside.argmax())
        raise InvalidInput(
            f"token id {ids[position]} at position {position} is not in the vocabulary; "
            f"ids are 0 to {self.size - 1}. If they are another tokenizer's, {SEND_TEXT}",
            code="invalid_token_id",
            param=param,
            limit=self.size - 1,
            actual=int(ids[position]),
        )

    def _check_used(self, ids: NDArray[np.integer[Any]], param: str | None) -> None:
        unused = self._unused[ids]
        if not unused.any():
            return
        position = int(unused.argmax())
        raise InvalidInput(
            f"token id {ids[position]} at position {position} is one that this model's "
            f"tokenizer never writes, so the ids are another tokenizer's: {SEND_TEXT}",
            code="foreign_token_ids",
            param=param,
            actual=int(ids[position]),
        )


def _unused_ids(ids_of_tokens: Mapping[str, int]) -> list[int]:
    return [
        index
        for token, index in ids_of_tokens.items()
        if token.startswith(_UNUSED_START) and _UNUSED.fullmatch(token)
    ]


def _as_integers(ids: Sequence[int] | Ids, *, param: str | None) -> NDArray[np.integer[Any]]:
    try:
        array = _as_array(ids)
    except ValueError:  # lists of several lengths or depths, or booleans
        array = np.zeros((0, 0))
    if array.size == 0 and array.ndim == 1:
        return np.zeros(0, dtype=np.int32)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        place, value = _first_stranger(ids)
        raise InvalidInput(
            f"token ids must be a flat list of integers of at most 64 bits, got {value} at "
            f"position {place}",
            code="invalid_token_id",
            param=param,
            actual=value,
        )
    return array


def _first_stranger(ids: Sequence[object] | Ids) -> tuple[int, str]:
    """The place and the name of what is no token id."""
    for place, value in enumerate(ids):
        is_integer = isinstance(value, int | np.integer) and not isinstance(value, bool)
        if not is_integer or not -(2**63) <= int(value) < 2**63:
            return place, _named(value)
    return 0, _named(ids)


def _named(value: object) -> str:
    """A value as JSON has it, from which most ids come; lists and objects by their kind alone."""
    match value:
        case None:
            return "null"
        case bool():
            return str(value).lower()
        case str():
            return repr(shown(value))
        case int() | float() | np.number():
            return shown(str(value))
        case list():
            return "a list"
        case dict():
            return "an object"
    return type(value).__name__


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
