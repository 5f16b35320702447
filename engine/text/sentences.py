"""Splits a text into sentences, by rules that most scripts share.

A sentence ends at a mark that has no other use (。 । ؟ and others), at an empty line, and at a full
stop, ! or ? before white space, unless the words around it say otherwise. Closing quotes and
brackets belong to the sentence before them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from engine.types import Span

_CLOSERS = "\"'”’»›)\\]}」』）】》〉］｝"
_OPENERS = "\"'“‘«‹([{¿¡„‚「『（【*_"

_END = re.compile(
    # 1: marks that end a sentence wherever they stand
    rf"([。．！？｡।॥۔؟։።፧၊။។៕꘎꓿𑁇]++[…!?]*+[{_CLOSERS}]*+)"
    # 2: marks that need white space after them; 3: closing quotes and brackets. A row of marks is
    # matched from its first one only, or a page of dots would take quadratic time.
    rf"|(?<![.!?…‽⁇⁈⁉])([.!?…‽⁇⁈⁉]++)([{_CLOSERS}*_]*+)(?=\s)"
    # an empty line
    r"|\n[^\S\n]*\n"
)
_WORD_BEFORE = re.compile(r"[^\s(\[{\"'“‘«]*\Z")
_NEXT = re.compile(rf"\s*[{re.escape(_OPENERS)}]*")
_INITIALS = re.compile(r"(?:[^\W\d_]\.)*[^\W\d_]\Z")
_LIST_NUMBER = re.compile(r"(?:\d{1,3}|[ivxlc]{1,5}|[a-zA-Z])\Z")

_LOOK_BACK = 24  # no abbreviation is longer
_LOOK_AHEAD = 24

# Abbreviations before names and numbers: a capital after them does not begin a sentence.
_BEFORE_NAMES = """
    mr mrs ms mx dr prof st ste sr jr rev hon gen col maj capt cmdr lt sgt cpl pvt adm gov sen rep
    pres supt msgr fr br mme mlle mm hr frl dipl ing bzw z.b u.a d.h vgl nr sig sra srta dott
    vol vols fig figs eq eqs ch chap p pp ed eds ref refs op cf vs v viz e.g i.e eg ie approx ca c
    mt ft messrs jan feb mar apr jun jul aug sep sept oct nov dec
"""
_BEFORE_NUMBERS = "no nos art arts sec secs"
# Abbreviations that may end a sentence: they do if the next word begins like one.
_ANYWHERE = "etc al inc ltd co corp bros dept est univ assn ave blvd rd a.m p.m u.s u.k"

_NEVER_LAST = frozenset(_BEFORE_NAMES.split())
_UNLESS_NUMBER = frozenset(f"{_BEFORE_NUMBERS} {_ANYWHERE}".split())


def sentences(text: str) -> list[Span]:
    """The sentences in order, without the white space around them. No other text is left out."""
    found = []
    start = 0
    for end in _ends(text):
        span = _trimmed(text, start, end)
        if span is not None:
            found.append(span)
        start = end
    return found


def _ends(text: str) -> Iterator[int]:
    for match in _END.finditer(text):
        if match[2] is None or _ends_sentence(text, match):
            yield match.end()
    yield len(text)


def _ends_sentence(text: str, match: re.Match[str]) -> bool:
    """Whether marks that also occur inside sentences end one here."""
    marks, closers = match[2], match[3]
    follower = _follower(text, match.end())
    if follower.islower() and (closers or marks[-1] not in "!?"):
        return False
    if marks != ".":
        return True
    word = _word_before(text, match.start())
    lowered = word.lower()
    if lowered in _NEVER_LAST or _is_list_number(text, match.start(), word):
        return False
    if lowered in _UNLESS_NUMBER:
        return not follower.isdigit()
    # "J. Smith" goes on. "Plan B. Then" looks the same, so it goes on too.
    return word == "I" or not (_INITIALS.match(word) and word[-1].isupper())


def _follower(text: str, end: int) -> str:
    """The next character after white space and opening quotes."""
    ahead = _NEXT.match(text, end, end + _LOOK_AHEAD)
    assert ahead is not None, "the pattern may match nothing"
    return text[ahead.end() : ahead.end() + 1]


def _word_before(text: str, end: int) -> str:
    word = _WORD_BEFORE.search(text[max(0, end - _LOOK_BACK) : end])
    assert word is not None, "the pattern may match nothing"
    return word[0]


def _is_list_number(text: str, end: int, word: str) -> bool:
    """Whether "1." or "a." opens its line."""
    if not _LIST_NUMBER.match(word):
        return False
    before = text[max(0, end - len(word) - _LOOK_BACK) : end - len(word)]
    return before.rpartition("\n")[2].strip() == "" and (
        "\n" in before or end - len(word) <= _LOOK_BACK
    )


def _trimmed(text: str, start: int, end: int) -> Span | None:
    sentence = text[start:end]
    content = sentence.strip()
    if not content:
        return None
    first = start + len(sentence) - len(sentence.lstrip())
    return Span(first, first + len(content))
