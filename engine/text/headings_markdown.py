"""Markdown's headings: # before, or = and - below; none in fenced code."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice

from engine.text.heading import MAX_TITLE, Heading, Line, lines_of

_ATX = re.compile(r" {0,3}(#{1,6})(?=[ \t]|\Z)")
_SETEXT = re.compile(r" {0,3}(=+|-+)[ \t]*\Z")
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})(.*)\Z")
# What cannot be the text of a heading that is underlined.
_NO_PARAGRAPH = re.compile(
    r" {4}|\t| {0,3}(?:>|[-*+][ \t]|\d{1,9}[.)][ \t]|\||<|([-*_])[ \t]*(?:\1[ \t]*){2,}\Z)|[ \t]*\Z"
)
_MAX_TITLE_LINES = 8  # a longer paragraph with a line below is no heading
_MAX_FRONT_MATTER = 200  # lines
_SAMPLE = 200_000  # characters that tell whether a text is Markdown


def looks_like_markdown(text: str) -> bool:
    """A single # may be a comment of some other language; two say more."""
    start = text[:_SAMPLE]
    found = find_markdown(start)
    return next(found, None) is not None and (
        next(found, None) is not None or start.lstrip().startswith("#")
    )


def find_markdown(text: str) -> Iterator[Heading]:
    fence = ""
    paragraph: list[Line] = []  # the lines that an underline would make a heading
    for line in _after_front_matter(lines_of(text)):
        mark = _FENCE.match(line.text)
        if fence:
            closes = mark is not None and mark[1].startswith(fence) and not mark[2].strip()
            fence = "" if closes else fence
            continue
        if mark is not None and not (mark[1][0] == "`" and "`" in mark[2]):
            fence = mark[1]
            paragraph = []
            continue
        heading = _atx(line) or _setext(paragraph, line)
        if heading is not None:
            yield heading
        if heading is not None or line.is_blank:
            paragraph = []
        elif paragraph or not _NO_PARAGRAPH.match(line.text):
            paragraph = [*paragraph[:_MAX_TITLE_LINES], line]


def _after_front_matter(lines: Iterator[Line]) -> Iterator[Line]:
    """Without the block between --- and --- that many files begin with."""
    front = list(islice(lines, _MAX_FRONT_MATTER))
    ends = [
        index for index, line in enumerate(front) if index and line.text.rstrip() in ("---", "...")
    ]
    has_front_matter = ends and front[0].text.rstrip() == "---"
    yield from front[ends[0] + 1 :] if has_front_matter else front
    yield from lines


def _atx(line: Line) -> Heading | None:
    match = _ATX.match(line.text)
    if match is None:
        return None
    title = line.text[match.end() :].strip()
    without_closing = title.rstrip("#")
    if not without_closing or without_closing[-1] in " \t":
        title = without_closing.rstrip()
    return Heading(line.start, len(match[1]), title) if len(title) <= MAX_TITLE else None


def _setext(paragraph: list[Line], line: Line) -> Heading | None:
    match = _SETEXT.match(line.text)
    if match is None or not 0 < len(paragraph) <= _MAX_TITLE_LINES:
        return None
    title = " ".join(part.text.strip() for part in paragraph)
    if len(title) > MAX_TITLE:
        return None
    return Heading(paragraph[0].start, 1 if match[1][0] == "=" else 2, title)
