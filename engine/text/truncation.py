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
        raise too_long(encoded.num_tokens, max_tokens, param)
    num_kept = max_tokens - encoded.num_prefix - encoded.num_suffix
    check_room(num_kept, max_tokens)
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


def too_long(
    num_tokens: int, max_tokens: int, param: str | None, *, has_ended: bool = True
) -> TextTooLong:
    so_far = "" if has_ended else " so far"
    return TextTooLong(
        f"the text has {num_tokens} tokens{so_far}, the limit is {max_tokens}; "
        'shorten it, or set truncate to "start" or "end"',
        param=param,
        limit=max_tokens,
        actual=num_tokens,
    )


def check_room(num_content: int, max_tokens: int) -> None:
    """Whether anything of a text is left beside the tokens that are always there."""
    if num_content >= 1:
        return
    needed = max_tokens - num_content + 1
    raise InvalidInput(
        f"a limit of {max_tokens} tokens leaves no room for text; at least {needed} are needed",
        code="limit_too_small",
        limit=needed,
        actual=max_tokens,
    )
