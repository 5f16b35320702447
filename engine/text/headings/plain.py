"""Headings of plain text: underlined, numbered or in capitals, on lines of their own.

As in reStructuredText, the style that comes first is the outermost level; the dots of a number add
levels.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

from engine.text.headings.heading import Heading, Line, lines_of

_RULE = re.compile(r"([=\-~^\"'`#*+.:_<>])\1{2,}[ \t]*\Z")
_NUMBERED = re.compile(r"(\d{1,3}(?:\.\d{1,3})*)(\.?)[ \t]+(?=[^\W\d_])")
_NAMED = re.compile(
    r"(?:chapter|part|book|section|appendix|article|act|scene)[ \t]+(?:\d+|[ivxlc]+|[a-z])\b",
    re.IGNORECASE,
)
_MAX_PLAIN_TITLE = 100  # a longer line is a paragraph


class _Style(NamedTuple):
    """What headings of one level have in common; `depth` counts the dots of a number."""

    kind: str
    depth: int = 0


class _StyledHeading(NamedTuple):
    start: int
    style: _Style
    title: str


def plain_headings(text: str) -> Iterator[Heading]:
    kinds: list[str] = []  # in the order of their first headings, so the outermost first
    for found in _styled_headings(lines_of(text)):
        if found.style.kind not in kinds:
            kinds.append(found.style.kind)
        level = kinds.index(found.style.kind) + 1 + found.style.depth
        yield Heading(found.start, level, found.title)


def _styled_headings(lines: Iterator[Line]) -> Iterator[_StyledHeading]:
    end = Line(0, "")
    window = deque(islice(lines, 3), maxlen=3)  # the current line and the next two
    window.extend([end] * (3 - len(window)))
    follows_blank, num_passed = True, 0
    while window[0] is not end:
        found, length = heading_at(*window) if follows_blank and not num_passed else (None, 1)
        if found is not None:
            yield found
            num_passed = length
        num_passed = max(0, num_passed - 1)
        follows_blank = window[0].is_blank
        window.append(next(lines, end))


def heading_at(line: Line, second: Line, third: Line) -> tuple[_StyledHeading | None, int]:
    """The heading that begins with a line, and how many lines it has; 1 if there is none."""
    if line.is_blank:
        return None, 1
    if is_boxed(line, second, third):
        style = _Style(f"boxed {line.text[0]}")
        return _StyledHeading(line.start, style, second.text.strip()), 3
    if _is_underlined(line, second):
        style = _Style(f"underlined {second.text[0]}")
        return _StyledHeading(line.start, style, line.text.strip()), 2
    own = _style_of(line, is_alone=second.is_blank)
    return (None if own is None else _StyledHeading(line.start, own, line.text.strip())), 1


def is_boxed(over: Line, title: Line, under: Line) -> bool:
    rule = over.text.rstrip()
    return (
        _RULE.match(over.text) is not None
        and rule == under.text.rstrip()
        and not title.is_blank
        and len(title.text.rstrip()) <= len(rule) + 1
    )


def _is_underlined(title: Line, under: Line) -> bool:
    # The rule may be two shorter: titles get edited, and some letters are wide.
    return (
        _RULE.match(under.text) is not None
        and _RULE.match(title.text) is None
        and len(title.text.strip()) <= len(under.text.rstrip()) + 2
    )


def _style_of(line: Line, *, is_alone: bool) -> _Style | None:
    title = line.text.strip()
    if len(title) > _MAX_PLAIN_TITLE or title[-1] in ".,;?!" or len(line.text) - len(title) > 80:
        return None
    numbered = _NUMBERED.match(title)
    if numbered is not None:
        depth = numbered[1].count(".")
        # "1. Item" among others like it is a list; a heading has its line to itself.
        return _Style("numbered", depth) if is_alone or depth else None
    if _NAMED.match(title):
        return _Style("named") if is_alone else None
    letters = [character for character in title if character.isalpha()]
    is_capitals = len(letters) >= 3 and title.isupper() and len(letters) * 2 > len(title)
    return _Style("capitals") if is_capitals else None
