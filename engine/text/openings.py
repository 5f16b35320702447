"""What tells the chunks of a document what they belong to: its title, or its first words."""

from __future__ import annotations

from typing import NamedTuple

from engine.text.chunking import OPENING_TOKENS, Shares
from engine.text.content_tokens import ContentTokens
from engine.types import Offsets, Span


class Opening(NamedTuple):
    tokens: Span
    share: float  # how much of its vector is added to each chunk's


def opening_of(
    offsets: Offsets,
    title: Span | None,
    shares: Shares,
    *,
    first: int,
    num_prompt: int,
    num_tokens: int,
) -> Opening:
    """The title that stands at these characters; the first words if there is none, or if
    truncation dropped it.

    `offsets` are those of the content, or of its beginning; it begins at token number `first` of
    `num_tokens`.
    """
    if title is not None:
        start, end = ContentTokens(offsets).touching(title)
        end = min(end, start + OPENING_TOKENS)
        if start < end:
            return Opening(Span(first + start, first + end), shares.title)
    # The prompt does not count, or a long one would be the whole opening of every document.
    return Opening(Span(0, min(num_prompt + OPENING_TOKENS, num_tokens)), shares.opening)
