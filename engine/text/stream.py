"""A text tokenised as it comes, in pieces cut anywhere, exactly as if it had come at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Protocol, TypeAlias

import numpy as np
from tokenizers import Encoding

from engine.errors import TextTooLong
from engine.text.cuts import Cuts
from engine.text.word_cuts import WordCuts
from engine.types import Ids, Offsets, Span

READ_CHARACTERS = 524_288
"""Text gathered before it is tokenised: enough parts to keep every core busy."""

PART_CHARACTERS = 16_384
"""Text that one core tokenises at a time."""

_MAX_CHARACTERS = 2**31 - 1  # offsets are int32
_LONG_WORD = 1_024

TakeTokens: TypeAlias = Callable[[Ids, Offsets | None], None]
"""Receives tokens in their order; offsets are None where none were asked for."""


class Tokenize(Protocol):
    """Encodes texts in parallel, without special tokens."""

    def __call__(self, texts: Sequence[str], *, with_offsets: bool) -> list[Encoding]: ...


class TokenStream:
    """Reads the pieces of one text and hands its tokens on as soon as no later piece can change
    them. It holds the text since the last cut; of a word too long for any vocabulary, nothing."""

    def __init__(
        self, tokenize: Tokenize, cuts: Cuts, take: TakeTokens, *, with_offsets: bool
    ) -> None:
        self._tokenize = tokenize
        self._cuts = cuts
        self._take = take
        self._with_offsets = with_offsets
        self._long_words = cuts if isinstance(cuts, WordCuts) else None
        self._lead_tokens = len(tokenize([cuts.lead], with_offsets=False)[0]) if cuts.lead else 0
        self._held = ""
        self._held_from = 0  # where it begins in the text
        self._fresh: list[str] = []  # after it, not looked at yet
        self._num_fresh = 0
        self._word: Span | None = None  # the unknown word that ends no earlier than `_held_from`

    @property
    def num_held(self) -> int:
        """Characters whose tokens are not known yet."""
        return len(self._held) + self._num_fresh

    def feed(self, text: str) -> None:
        for start in range(0, len(text), READ_CHARACTERS):
            piece = text[start : start + READ_CHARACTERS]
            self._fresh.append(piece)
            self._num_fresh += len(piece)
            # As much again as is held already, so that nothing is looked at more than twice.
            if self._num_fresh >= max(READ_CHARACTERS, len(self._held)):
                self._read()

    def finish(self) -> None:
        self._gather()
        if self._word is not None:
            self._end_word(self._word)
        self._encode(self._held)

    def _read(self) -> None:
        self._gather()
        if self._word is not None and self._held:
            self._end_word(self._word)
        if self._word is None:
            cut = self._cuts.last_cut(self._held)
            self._encode(self._held[:cut])
            self._let_go(cut)
            self._find_long_word()

    def _gather(self) -> None:
        """Add what is fresh to what is held, but for the rest of an unknown word."""
        self._held += "".join(self._fresh)
        self._fresh.clear()
        self._num_fresh = 0
        if self._held_from + len(self._held) > _MAX_CHARACTERS:
            raise _too_many_characters()
        if self._word is not None and self._long_words is not None:
            length, end = self._long_words.rest_of_word(self._held)
            if end:
                self._word = Span(self._word.start, self._held_from + end)
            self._let_go(length)

    def _let_go(self, length: int) -> None:
        self._held = self._held[length:]
        self._held_from += length

    def _find_long_word(self) -> None:
        if self._long_words is None or len(self._held) < _LONG_WORD:
            return
        word = self._long_words.unknown_word(self._held)
        if word is not None:
            self._word = _shifted(word, self._held_from)
            self._let_go(len(self._held))

    def _end_word(self, word: Span) -> None:
        assert self._long_words is not None  # which found the word
        offsets = np.array([word], dtype=np.int32) if self._with_offsets else None
        self._take(np.array([self._long_words.unknown_id], dtype=np.int32), offsets)
        self._word = None

    def _encode(self, text: str) -> None:
        parts = list(self._parts(text))
        is_first = self._held_from == 0
        leads = ["" if is_first and index == 0 else self._cuts.lead for index in range(len(parts))]
        texts = [lead + part for lead, part in zip(leads, parts, strict=True)]
        start = self._held_from
        for encoding, lead, part in zip(
            self._tokenize(texts, with_offsets=self._with_offsets), leads, parts, strict=True
        ):
            self._hand_on(encoding, len(lead), start)
            start += len(part)

    def _parts(self, text: str) -> Iterator[str]:
        while len(text) > PART_CHARACTERS:
            size = PART_CHARACTERS
            while (cut := self._cuts.last_cut(text[:size])) == 0 and size < len(text):
                size *= 2
            if cut == 0:
                break
            yield text[:cut]
            text = text[cut:]
        if text:
            yield text

    def _hand_on(self, encoding: Encoding, lead_length: int, start: int) -> None:
        first = self._lead_tokens if lead_length else 0
        ids = np.array(encoding.ids[first:], dtype=np.int32)
        if len(ids) == 0:
            return
        offsets = None
        if self._with_offsets:
            offsets = offsets_array(encoding)[first:] + np.int32(start - lead_length)
        self._take(ids, offsets)


def offsets_array(encoding: Encoding) -> Offsets:
    """[tokens, 2]"""
    pairs = encoding.offsets
    flat = np.fromiter(chain.from_iterable(pairs), dtype=np.int32, count=2 * len(pairs))
    return flat.reshape(-1, 2)


def _shifted(span: Span, by: int) -> Span:
    return Span(span.start + by, span.end + by)


def _too_many_characters() -> TextTooLong:
    return TextTooLong(
        f"the text has more than {_MAX_CHARACTERS} characters",
        param="text",
        limit=_MAX_CHARACTERS,
        actual=_MAX_CHARACTERS + 1,
    )
