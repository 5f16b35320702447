"""Where a text can be split so that its parts, tokenised apart, give the tokens of the whole.

A split is offered only where every step of the tokenizer (added tokens, normaliser,
pre-tokenizer) is known to look no further. If a step is unknown, the text is never split and is
read in one piece.

- `WordSplitter` is for BERT's word pieces: it splits beside every character that stands between
  words. BERT's normaliser and pre-tokenizer look at one character at a time. So the tokenizer is
  asked once what it does with each character, and the answer is looked up from then on.
- `SpaceSplitter` is for byte-level and Metaspace tokenizers: it splits before spaces.
- `NoSplitter` is for all others.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from tokenizers import AddedToken, Tokenizer, models

from engine.types import Span

_FIRST_WINDOW = 256
"""Characters at the end of a text that are searched first for a place to split it."""


class Splitter(Protocol):
    """Finds where the texts of one tokenizer can be split."""

    @property
    def left_context(self) -> str:
        """Put before a part that does not begin its text, and its tokens removed again, so that
        the tokenizer reads the part as the middle of a text."""

    def last_split(self, text: str) -> int:
        """The last place to split a text of which more may follow; 0 if there is none."""


def choose_splitter(tokenizer: Tokenizer) -> Splitter:
    if _allows_word_splits(tokenizer):
        return WordSplitter(tokenizer)
    return SpaceSplitter() if _allows_space_splits(tokenizer) else NoSplitter()


class NoSplitter:
    """For tokenizers with a step that is unknown here."""

    left_context = ""

    def last_split(self, text: str) -> int:
        return 0


_SPACE_SPLIT = re.compile(r"[!-~](?= )")


class SpaceSplitter:
    """Splits before a space that follows a visible ASCII character.

    There a byte-level pattern and Metaspace both begin a new word. No grapheme cluster, no
    composition and no run of spaces reaches from one side to the other, and on neither side is
    text stripped or a prefix added.
    """

    left_context = "a"

    def last_split(self, text: str) -> int:
        size = _FIRST_WINDOW
        while True:
            start = max(0, len(text) - size)
            splits = [found.end() for found in _SPACE_SPLIT.finditer(text, start)]
            if splits or start == 0:
                return splits[-1] if splits else 0
            size *= 8


def _allows_space_splits(tokenizer: Tokenizer) -> bool:
    """Whether `SpaceSplitter` is exact for this tokenizer."""
    normalizing = _steps_of(tokenizer.normalizer)
    splitting = _steps_of(tokenizer.pre_tokenizer)
    has_metaspace = any(step["type"] == "Metaspace" for step in splitting)
    return (
        getattr(tokenizer.model, "dropout", None) is None
        and all(_normalizes_by_word(step, has_metaspace) for step in normalizing)
        and all(map(_begins_words_at_spaces, splitting))
        and len(splitting) > 0
        and not any(map(_reaches_past_spaces, _added_tokens(tokenizer)))
    )


def _normalizes_by_word(step: dict[str, Any], has_metaspace: bool) -> bool:
    if step["type"] == "Replace":  # several spaces by one, or by the sign that stands for it
        return has_metaspace and step["pattern"] == {"Regex": " {2,}"}
    if step["type"] == "Strip":  # text after an added token starts afresh, and would be stripped
        return not step["strip_left"]
    return step["type"] in {
        "BertNormalizer",
        "Lowercase",
        "NFC",
        "NFD",
        "NFKC",
        "NFKD",
        "Precompiled",
        "StripAccents",
    }


def _begins_words_at_spaces(step: dict[str, Any]) -> bool:
    if step["type"] == "ByteLevel":
        return bool(step["use_regex"])
    if step["type"] == "Metaspace":
        return bool(step["split"])
    return step["type"] in {"BertPreTokenizer", "Whitespace", "WhitespaceSplit"}


def _reaches_past_spaces(token: AddedToken) -> bool:
    return token.rstrip or any(character.isspace() for character in token.content)


# What a tokenizer does with a character.
_BETWEEN = 0  # ends the word before it and begins none: a space, or a word of its own
_INSIDE = 1
_DROPPED = 2
_UNSURE = 3  # may swap places with its neighbours when combining marks are sorted

_BLOCK = 256
_CODE_POINTS = 0x110000
_SURROGATES = range(0xD800, 0xE000)

Kinds = NDArray[np.uint8]


class _CharacterKinds:
    """What a tokenizer does with each character, learned one block of characters at a time."""

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
            for block in np.flatnonzero(np.bincount(blocks[is_new])).tolist():
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
        """Tokenises the character between two letters: is it one word, and what is left of it?"""
        normalizer, pre_tokenizer = self._tokenizer.normalizer, self._tokenizer.pre_tokenizer
        normalized = normalizer.normalize_str(f"a{character}a")
        if normalized == "aa":
            return _DROPPED
        words = [word for word, _ in pre_tokenizer.pre_tokenize_str(normalized)]
        if words[0] == words[-1] == "a":
            return _BETWEEN
        is_mark = unicodedata.combining(character) != 0
        return _UNSURE if len(words) > 1 or is_mark else _INSIDE


class WordSplitter:
    """Splits beside the characters between words, and finds words too long for the vocabulary."""

    left_context = ""

    def __init__(self, tokenizer: Tokenizer) -> None:
        model = tokenizer.model
        assert isinstance(model, models.WordPiece), "_allows_word_splits checks it"
        self._kinds = _CharacterKinds(tokenizer)
        self._added = [token.content for token in _added_tokens(tokenizer)]
        self._reach = max(map(len, self._added), default=1) - 1
        self._max_word_length = model.max_input_chars_per_word
        self.unknown_id: int | None = tokenizer.token_to_id(model.unk_token)

    def last_split(self, text: str) -> int:
        end = len(text) - self._reach  # later, an added token could still begin before the split
        size = _FIRST_WINDOW
        while end > 0:
            start = max(0, end - size)
            is_between = self._kinds.of(text[start : end + 1]) == _BETWEEN
            is_split = is_between[: end - start].copy()  # after each of these characters
            is_split[: len(is_between) - 1] |= is_between[1:]
            for index in np.flatnonzero(is_split)[::-1].tolist():
                split = int(start + index + 1)
                if not self._is_inside_added(text, split):
                    return split
            if start == 0:
                break
            size *= 8
        return 0

    def unknown_word(self, text: str) -> Span | None:
        """The word that a text begins with, if the text so far holds no other and the word is
        unknown whatever follows it."""
        kinds = self._kinds.of(text)
        inside = np.flatnonzero(kinds == _INSIDE)
        is_one_word = not ((kinds == _BETWEEN) | (kinds == _UNSURE)).any()
        if not is_one_word or len(inside) <= self._max_word_length or self.unknown_id is None:
            return None
        return Span(int(inside[0]), int(inside[-1]) + 1)

    def rest_of_word(self, text: str) -> tuple[int, int]:
        """How many characters still belong to the word before this text, and the end of those
        that are not dropped (0 if all are)."""
        kinds = self._kinds.of(text)
        between = np.flatnonzero(kinds == _BETWEEN)
        length = int(between[0]) if len(between) else len(text)
        inside = np.flatnonzero(kinds[:length] != _DROPPED)
        return length, int(inside[-1]) + 1 if len(inside) else 0

    def _is_inside_added(self, text: str, split: int) -> bool:
        return any(
            token in text[max(0, split - len(token) + 1) : split + len(token) - 1]
            for token in self._added
        )


def _allows_word_splits(tokenizer: Tokenizer) -> bool:
    """Whether `WordSplitter` is exact for this tokenizer."""
    return (
        isinstance(tokenizer.model, models.WordPiece)
        and _types_of_steps(tokenizer.normalizer) <= {"BertNormalizer", "Lowercase"}
        and tokenizer.normalizer is not None
        and _types_of_steps(tokenizer.pre_tokenizer) == {"BertPreTokenizer"}
        and _types_of_steps(tokenizer.post_processor) <= {"BertProcessing", "TemplateProcessing"}
        and _stand_alone(_added_tokens(tokenizer), _CharacterKinds(tokenizer))
    )


def _stand_alone(tokens: Sequence[AddedToken], kinds: _CharacterKinds) -> bool:
    """Whether added tokens are matched in the raw text, and never inside a word."""
    return not any(
        token.normalized
        or token.lstrip
        or token.rstrip
        or token.single_word
        or (kinds.of(token.content[0] + token.content[-1]) != _BETWEEN).any()
        for token in tokens
    )


def _added_tokens(tokenizer: Tokenizer) -> list[AddedToken]:
    return list(tokenizer.get_added_tokens_decoder().values())


def _types_of_steps(component: object) -> set[str]:
    return {step["type"] for step in _steps_of(component)}


def _steps_of(component: Any) -> list[dict[str, Any]]:
    """The settings of one of a tokenizer's components, with nested sequences flattened."""
    if component is None:
        return []
    return _flat(json.loads(component.__getstate__()))


def _flat(settings: dict[str, Any]) -> list[dict[str, Any]]:
    if settings["type"] != "Sequence":
        return [settings]
    parts = next(value for value in settings.values() if isinstance(value, list))
    return [step for part in parts for step in _flat(part)]
