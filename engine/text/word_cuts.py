"""Cuts for BERT's word pieces: beside every character that stands between words.

BERT's normaliser and pre-tokenizer look at one character at a time, so that what each character
does is asked of the tokenizer itself, once, and looked up from then on.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from tokenizers import AddedToken, Tokenizer, models

from engine.text.cuts import added_tokens, steps_of
from engine.types import Span

_BETWEEN = 0  # ends the word before it and begins none: a space, or a word of its own
_INSIDE = 1
_DROPPED = 2
_UNSURE = 3  # might change places with its neighbours when marks are put in order

_BLOCK = 256
_FIRST_WINDOW = 256
_CODE_POINTS = 0x110000
_SURROGATES = range(0xD800, 0xE000)

Kinds = NDArray[np.uint8]


class CharacterKinds:
    """What a tokenizer does with each character, found out a block of characters at a time."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._kinds: Kinds = np.zeros(_CODE_POINTS, dtype=np.uint8)
        self._is_known = np.zeros(_CODE_POINTS // _BLOCK, dtype=np.bool_)

    def of(self, text: str) -> Kinds:
        """[len(text)]"""
        codes = np.frombuffer(text.encode("utf-32-le"), dtype="<u4")
        blocks = codes // _BLOCK
        is_new = ~self._is_known[blocks]
        if is_new.any():
            for block in np.unique(blocks[is_new]).tolist():
                self._learn(block)
        kinds: Kinds = self._kinds[codes]
        return kinds

    def _learn(self, block: int) -> None:
        codes = range(block * _BLOCK, (block + 1) * _BLOCK)
        self._kinds[codes.start : codes.stop] = [
            _UNSURE if code in _SURROGATES else self._kind(chr(code)) for code in codes
        ]
        self._is_known[block] = True

    def _kind(self, character: str) -> int:
        """Seen between two letters: whether they are still one word, and what is left of it."""
        normalizer, pre_tokenizer = self._tokenizer.normalizer, self._tokenizer.pre_tokenizer
        normalized = normalizer.normalize_str(f"a{character}a")
        if normalized == "aa":
            return _DROPPED
        words = [word for word, _ in pre_tokenizer.pre_tokenize_str(normalized)]
        if words[0] == words[-1] == "a":
            return _BETWEEN
        is_mark = unicodedata.combining(character) != 0
        return _UNSURE if len(words) > 1 or is_mark else _INSIDE


class WordCuts:
    """Cuts beside the characters between words, and the words too long to be in a vocabulary."""

    lead = ""

    def __init__(self, tokenizer: Tokenizer) -> None:
        model = tokenizer.model
        assert isinstance(model, models.WordPiece)  # allow_word_cuts says so
        self._kinds = CharacterKinds(tokenizer)
        self._added = [token.content for token in added_tokens(tokenizer)]
        self._reach = max(map(len, self._added), default=1) - 1
        self._max_word_length = model.max_input_chars_per_word
        self.unknown_id: int | None = tokenizer.token_to_id(model.unk_token)

    def last_cut(self, text: str) -> int:
        end = len(text) - self._reach  # later, an added token could still begin before the cut
        size = _FIRST_WINDOW
        while end > 0:
            start = max(0, end - size)
            is_between = self._kinds.of(text[start : end + 1]) == _BETWEEN
            is_cut = is_between[: end - start].copy()  # cuts after each of these characters
            is_cut[: len(is_between) - 1] |= is_between[1:]
            for place in np.flatnonzero(is_cut)[::-1].tolist():
                if not self._splits_added(text, start + place + 1):
                    return int(start + place + 1)
            if start == 0:
                break
            size *= 8
        return 0

    def unknown_word(self, text: str) -> Span | None:
        """Where the word is that a text begins with, if that is all there is of the text so far
        and the word is unknown whatever follows it."""
        kinds = self._kinds.of(text)
        inside = np.flatnonzero(kinds == _INSIDE)
        is_one_word = not ((kinds == _BETWEEN) | (kinds == _UNSURE)).any()
        if not is_one_word or len(inside) <= self._max_word_length or self.unknown_id is None:
            return None
        return Span(int(inside[0]), int(inside[-1]) + 1)

    def rest_of_word(self, text: str) -> tuple[int, int]:
        """How much of a text still belongs to the word before it, and the end of what counts of
        that (0 if nothing does)."""
        kinds = self._kinds.of(text)
        between = np.flatnonzero(kinds == _BETWEEN)
        length = int(between[0]) if len(between) else len(text)
        inside = np.flatnonzero(kinds[:length] != _DROPPED)
        return length, int(inside[-1]) + 1 if len(inside) else 0

    def _splits_added(self, text: str, cut: int) -> bool:
        return any(
            token in text[max(0, cut - len(token) + 1) : cut + len(token) - 1]
            for token in self._added
        )


def allow_word_cuts(tokenizer: Tokenizer) -> bool:
    """Whether `WordCuts` holds for this tokenizer."""
    return (
        isinstance(tokenizer.model, models.WordPiece)
        and _kinds_of_steps(tokenizer.normalizer) <= {"BertNormalizer", "Lowercase"}
        and tokenizer.normalizer is not None
        and _kinds_of_steps(tokenizer.pre_tokenizer) == {"BertPreTokenizer"}
        and _kinds_of_steps(tokenizer.post_processor) <= {"BertProcessing", "TemplateProcessing"}
        and _stand_alone(added_tokens(tokenizer), CharacterKinds(tokenizer))
    )


def _kinds_of_steps(component: object) -> set[str]:
    return {step["type"] for step in steps_of(component)}


def _stand_alone(tokens: Sequence[AddedToken], kinds: CharacterKinds) -> bool:
    """Whether added tokens are found in the text as it is, and never inside a word."""
    return not any(
        token.normalized
        or token.lstrip
        or token.rstrip
        or token.single_word
        or (kinds.of(token.content[0] + token.content[-1]) != _BETWEEN).any()
        for token in tokens
    )
