"""Making a text fit a model, if its caller asked for that, and saying what was lost."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from engine.errors import InvalidInput, TextTooLong
from engine.text.passages import character_span
from engine.text.tokenizer import Encoded
from engine.types import Span, Truncate


class Truncated(NamedTuple):
    encoded: Encoded
    dropped: Span | None  # characters; None if nothing was dropped, or for token input


def truncate(
    encoded: Encoded, *, max_tokens: int, policy: Truncate = "error", param: str | None = None
) -> Truncated:
    """The text within `max_tokens`, special tokens included and kept.

    `policy` "start" drops the text's start, "end" its end, "error" refuses a longer text.
    """
    if encoded.num_tokens <= max_tokens:
        return Truncated(encoded, None)
    if policy == "error":
        raise _too_long(encoded, max_tokens, param)
    num_kept = max_tokens - encoded.num_prefix - encoded.num_suffix
    if num_kept < 1:
        raise _no_room(encoded, max_tokens)
    first = encoded.num_prefix
    last = first + encoded.num_content
    if policy == "start":
        return _cut(encoded, kept=Span(last - num_kept, last), dropped=Span(first, last - num_kept))
    return _cut(encoded, kept=Span(first, first + num_kept), dropped=Span(first + num_kept, last))


def _cut(encoded: Encoded, *, kept: Span, dropped: Span) -> Truncated:
    places = _places(encoded, kept)
    cut = Encoded(
        encoded.ids[places],
        encoded.num_prefix,
        encoded.num_suffix,
        (lambda: encoded.offsets[places]) if encoded.has_characters else None,
    )
    characters = character_span(encoded.offsets, dropped) if encoded.has_characters else None
    return Truncated(cut, characters)


def _places(encoded: Encoded, kept: Span) -> NDArray[np.intp]:
    """Indices of the special tokens and of the content that is kept."""
    end = encoded.num_tokens
    prefix = np.arange(encoded.num_prefix)
    suffix = np.arange(end - encoded.num_suffix, end)
    return np.concatenate([prefix, np.arange(kept.start, kept.end), suffix])


def _too_long(encoded: Encoded, max_tokens: int, param: str | None) -> TextTooLong:
    return TextTooLong(
        f"the text has {encoded.num_tokens} tokens, the limit is {max_tokens}; "
        'shorten it, or set truncate to "start" or "end"',
        param=param,
        limit=max_tokens,
        actual=encoded.num_tokens,
    )


def _no_room(encoded: Encoded, max_tokens: int) -> InvalidInput:
    needed = encoded.num_prefix + encoded.num_suffix + 1
    return InvalidInput(
        f"a limit of {max_tokens} tokens leaves no room for text; at least {needed} are needed",
        code="limit_too_small",
        limit=needed,
        actual=max_tokens,
    )
