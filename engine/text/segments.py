"""Divides a document into segments whose bounds follow its content.

A segment ends where the text just before the bound says so (a rolling hash, as in content-defined
chunking), at the end of a paragraph where there is one. So an edit moves the bounds near it, and
all others stay where they were in the text. `seen` says how much of the text was looked at to find
a segment's end: where these characters are the same, so is the segment.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from hashlib import blake2b, sha256
from typing import NamedTuple

import numpy as np

from engine.text.encoded import Encoded
from engine.text.tokenizer import TextTokenizer
from engine.types import Ids, Offsets, Span

LEAST_TOKENS = 512
USUAL_TOKENS = 2048
MOST_TOKENS = 4096
"""Content tokens of a segment. Only a document's last segment may have fewer than the least."""

LEAST_LEFT = 4 * LEAST_TOKENS
"""Characters that must follow a bound, so the last segment is seldom a scrap."""

_WINDOW = 48
"""Characters before a bound that decide about it."""

_READ_CHARACTERS = 5 * USUAL_TOKENS
"""Characters tokenised first while the end of a segment is searched."""

_MARGIN = 64
"""Tokens at the end of a window that may not be those of the whole text."""

_PARAGRAPH_END = re.compile(r"\n[^\S\n]*\n\s*(?=\S)")
_LINE_END = re.compile(r"\n+(?=[^\n])")
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=\S)")
_SPACE = re.compile(r"\s+(?=\S)")
_KINDS_OF_ENDS = (_PARAGRAPH_END, _LINE_END, _SENTENCE_END, _SPACE)
"""Where a segment may end, the best first."""


class Segment(NamedTuple):
    """A part of a document, tokenised by itself."""

    characters: Span  # of the document
    seen: int  # characters from the segment's start that decided where it ends
    sees_end: bool  # whether the end of the document decided too
    ids: Ids  # [content tokens]
    offsets: Offsets  # [content tokens, 2] characters from the segment's start


class SegmentKey(NamedTuple):
    """What must be the same for a segment to be the same again."""

    seen: int
    digest: str  # of the characters seen
    sees_end: bool


def digest_of(text: str) -> str:
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def key_of(text: str, segment: Segment) -> SegmentKey:
    start = segment.characters.start
    seen = text[start : start + segment.seen]
    return SegmentKey(len(seen), digest_of(seen), segment.sees_end)


def key_matches(text: str, start: int, key: SegmentKey) -> bool:
    """Whether a segment with this key begins at `start`."""
    end = start + key.seen
    if end > len(text) or (key.sees_end and end != len(text)):
        return False
    return digest_of(text[start:end]) == key.digest


def segment_at(text: str, start: int, tokenizer: TextTokenizer) -> Segment:
    """The segment that begins at this character."""
    left = len(text) - start
    length = _READ_CHARACTERS
    while True:
        window = text[start : start + length]
        tokens = _Tokens(_encode(window, tokenizer))
        found = _chosen_end(window, tokens, left)
        if found is not None:
            return _made(start, found, min(found + LEAST_LEFT, left), False, tokens)
        if length >= left or tokens.count > MOST_TOKENS + _MARGIN:
            break
        length *= 2
    if length >= left and tokens.count <= MOST_TOKENS:
        return _made(start, len(window), len(window), True, tokens)
    return _made(start, _forced_end(window, tokens), len(window), length >= left, tokens)


def segments_of(text: str, tokenizer: TextTokenizer) -> Iterator[Segment]:
    """All segments of a document, in order."""
    start = 0
    while start < len(text):
        segment = segment_at(text, start, tokenizer)
        yield segment
        start = segment.characters.end


class _Tokens:
    """The content tokens of a window, found by their last character."""

    def __init__(self, encoded: Encoded) -> None:
        first, count = encoded.num_prefix, encoded.num_content
        self.ids: Ids = encoded.ids[first : first + count]
        self.offsets: Offsets = encoded.offsets[first : first + count]
        self.count = count
        self._ends = np.maximum.accumulate(self.offsets[:, 1]) if count else np.zeros(0, np.int32)

    def before(self, character: int) -> int:
        """How many tokens end at or before this character."""
        return int(np.searchsorted(self._ends, character, side="right"))

    def end_of(self, token: int) -> int:
        return int(self._ends[token])


def _encode(window: str, tokenizer: TextTokenizer) -> Encoded:
    (encoded,) = tokenizer.encode_batch([window], with_offsets=True)
    return encoded


def _made(start: int, end: int, seen: int, sees_end: bool, tokens: _Tokens) -> Segment:
    count = tokens.before(end)
    return Segment(
        Span(start, start + end), seen, sees_end, tokens.ids[:count], tokens.offsets[:count]
    )


def _chosen_end(window: str, tokens: _Tokens, left: int) -> int | None:
    """The first end of a paragraph whose hash is below its share of the usual length. A paragraph
    is the more likely to be the last the longer it is, so segments are of one length whatever the
    length of paragraphs."""
    last = 0
    for end in ends_in(window, _PARAGRAPH_END):
        count = tokens.before(end)
        if count > MOST_TOKENS:
            return None
        share = (count - max(last, LEAST_TOKENS)) / (USUAL_TOKENS - LEAST_TOKENS)
        last = count
        if count >= LEAST_TOKENS and left - end >= LEAST_LEFT and _hash(window, end) < share:
            return end
    return None


def _forced_end(window: str, tokens: _Tokens) -> int:
    """Where a segment ends that would be too long: the place with the smallest hash, of the best
    kind of place that there is."""
    limit = tokens.end_of(MOST_TOKENS - 1)
    for pattern in _KINDS_OF_ENDS:
        places = [
            end
            for end in ends_in(window, pattern)
            if end <= limit and LEAST_TOKENS <= tokens.before(end) <= MOST_TOKENS
        ]
        if places:
            return min(places, key=lambda end: _hash(window, end))
    return limit


def ends_in(window: str, pattern: re.Pattern[str]) -> Iterator[int]:
    """Where matches end. All end before other text, so the white space at the window's end has
    none. It is left out: a search would try each of its characters up to the end of all."""
    searched = window.rstrip("\n" if pattern is _LINE_END else None)
    return (match.end() for match in pattern.finditer(window, 0, len(searched)))


def _hash(window: str, end: int) -> float:
    """0 to 1, decided by the characters before a bound."""
    near = window[max(0, end - _WINDOW) : end].encode("utf-8", "surrogatepass")
    return int.from_bytes(blake2b(near, digest_size=6).digest(), "big") / 2**48
