"""A document's content tokens, found by their characters, and the passages they make up."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain, pairwise
from typing import NamedTuple

import numpy as np

from engine.types import Ids, Offsets, Span


class Passage(NamedTuple):
    """A part of the text with its tokens."""

    tokens: Span  # counted from the first content token
    characters: Span
    piece: int = 0  # index of the piece of text that it was made from

    @property
    def num_tokens(self) -> int:
        return self.tokens.end - self.tokens.start

    def joined(self, following: Passage) -> Passage:
        tokens = Span(self.tokens.start, following.tokens.end)
        return Passage(tokens, Span(self.characters.start, following.characters.end), self.piece)


class ContentTokens:
    """The content tokens of a document, found by their characters."""

    def __init__(self, offsets: Offsets) -> None:
        self._offsets = offsets
        # Normalisers may swap neighbouring marks, so a token may begin before the one before it.
        self._starts: Ids = np.maximum.accumulate(offsets[:, 0])
        self._ends: Ids = np.maximum.accumulate(offsets[:, 1])

    @property
    def all(self) -> Span:
        return Span(0, len(self._offsets))

    @property
    def extent(self) -> Span:
        """From the first character of any token to the last."""
        return Span(int(self._starts[0]), int(self._ends[-1]))

    def characters(self, tokens: Span) -> Span:
        return character_span(self._offsets, tokens)

    def touching(self, characters: Span) -> Span:
        """The tokens that have a character in a span; an empty range if there are none."""
        first = int(np.searchsorted(self._ends, characters.start, side="right"))
        end = int(np.searchsorted(self._starts, characters.end, side="left"))
        return Span(first, max(first, end))

    def passages(self, pieces: Sequence[Span], within: Span) -> list[Passage]:
        """The pieces of the text as passages, in order. Pieces without tokens are left out.

        Each token of `within` is in one passage: the last that begins before the token ends, or
        the first if none does.
        """
        if within.start == within.end:
            return []
        # A text of white space has no pieces, but some tokenizers make a token of it.
        pieces = pieces or [self.characters(within)]
        # By a token's end, since its start may be the space before its word.
        bounds = np.searchsorted(self._ends, [piece.start for piece in pieces], side="right")
        starts = np.clip(bounds, within.start, within.end).tolist()
        starts[:1] = [within.start]
        spans = (Span(start, end) for start, end in pairwise([*starts, within.end]))
        return [
            Passage(span, characters, index)
            for index, (span, characters) in enumerate(zip(spans, pieces, strict=True))
            if span.start < span.end
        ]

    def sized(
        self, passages: Iterable[Passage], *, min_tokens: int, max_tokens: int
    ) -> list[Passage]:
        """Splits passages that are too large, and joins neighbours that are too small."""
        found: list[Passage] = []
        for passage in chain.from_iterable(self._split(item, max_tokens) for item in passages):
            if found and found[-1].num_tokens < min_tokens and _fit(found[-1], passage, max_tokens):
                found[-1] = found[-1].joined(passage)
            else:
                found.append(passage)
        if len(found) < 2:
            return found
        *before, beside, last = found
        is_small = last.num_tokens < min_tokens and _fit(beside, last, max_tokens)
        return [*before, beside.joined(last)] if is_small else found

    def _split(self, passage: Passage, max_tokens: int) -> list[Passage]:
        """Splits into as few parts as possible, of about the same size."""
        count = -(-passage.num_tokens // max_tokens)
        if count == 1:
            return [passage]
        first = passage.tokens.start
        bounds = [first + passage.num_tokens * part // count for part in range(count + 1)]
        parts = [Span(start, end) for start, end in pairwise(bounds)]
        spans = [self.characters(tokens) for tokens in parts]
        # Characters without tokens, such as marks, stay with the tokens beside them.
        start, end = passage.characters
        spans[0] = Span(min(start, spans[0].start), spans[0].end)
        spans[-1] = Span(spans[-1].start, max(end, spans[-1].end))
        return [
            Passage(tokens, characters, passage.piece)
            for tokens, characters in zip(parts, spans, strict=True)
        ]


def character_span(offsets: Offsets, tokens: Span) -> Span:
    """From the first character of these tokens to the last; there must be at least one token."""
    part = offsets[tokens.start : tokens.end]
    return Span(int(part[:, 0].min()), int(part[:, 1].max()))


def _fit(one: Passage, other: Passage, max_tokens: int) -> bool:
    return one.num_tokens + other.num_tokens <= max_tokens
