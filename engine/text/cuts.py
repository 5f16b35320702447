"""Where a text can be cut so that its parts, tokenised apart, give the tokens of the whole.

A cut is offered only where every step of the tokenizer (added tokens, normaliser, pre-tokenizer)
is known to look no further. What is not known is not cut: the text is then read in one piece.
"""

from __future__ import annotations

import json
import re
from typing import Any, Protocol

from tokenizers import AddedToken, Tokenizer

_SPACE_CUT = re.compile(r"[!-~](?= )")
_FIRST_WINDOW = 256


class Cuts(Protocol):
    """Cuts of one tokenizer's texts."""

    @property
    def lead(self) -> str:
        """Put before a part that does not begin its text, and its tokens taken off again, so that
        the part is read as the middle of a text."""

    def last_cut(self, text: str) -> int:
        """The last place to cut a text of which more may follow; 0 if there is none."""


class NoCuts:
    """For tokenizers whose steps are not all known."""

    lead = ""

    def last_cut(self, text: str) -> int:
        return 0


class SpaceCuts:
    """Before a space that follows a visible ASCII character.

    There a byte-level pattern and Metaspace both begin a new word; no grapheme cluster, no
    composition and no run of spaces reaches from one side to the other; and neither side is a
    place where text is stripped or a prefix put.
    """

    lead = "a"

    def last_cut(self, text: str) -> int:
        size = _FIRST_WINDOW
        while True:
            start = max(0, len(text) - size)
            cuts = [found.end() for found in _SPACE_CUT.finditer(text, start)]
            if cuts or start == 0:
                return cuts[-1] if cuts else 0
            size *= 8


def allow_space_cuts(tokenizer: Tokenizer) -> bool:
    """Whether `SpaceCuts` holds for this tokenizer."""
    normalizing = steps_of(tokenizer.normalizer)
    splitting = steps_of(tokenizer.pre_tokenizer)
    has_metaspace = any(step["type"] == "Metaspace" for step in splitting)
    return (
        getattr(tokenizer.model, "dropout", None) is None
        and all(_normalizes_by_word(step, has_metaspace) for step in normalizing)
        and all(map(_begins_words_at_spaces, splitting))
        and len(splitting) > 0
        and not any(map(_reaches_past_spaces, added_tokens(tokenizer)))
    )


def added_tokens(tokenizer: Tokenizer) -> list[AddedToken]:
    return list(tokenizer.get_added_tokens_decoder().values())


def steps_of(component: Any) -> list[dict[str, Any]]:
    """The settings of one of a tokenizer's components, with sequences laid flat."""
    if component is None:
        return []
    return _flat(json.loads(component.__getstate__()))


def _flat(settings: dict[str, Any]) -> list[dict[str, Any]]:
    if settings["type"] != "Sequence":
        return [settings]
    parts = next(value for value in settings.values() if isinstance(value, list))
    return [step for part in parts for step in _flat(part)]


def _normalizes_by_word(step: dict[str, Any], has_metaspace: bool) -> bool:
    if step["type"] == "Replace":  # of several spaces by one, or by the sign that stands for it
        return has_metaspace and step["pattern"] == {"Regex": " {2,}"}
    if step["type"] == "Strip":  # what follows an added token begins anew, and would be stripped
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
