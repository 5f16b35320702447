"""Headings of Markdown: # before a line, or = and - below it. None in code or front matter."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice

from engine.text.headings.heading import MAX_TITLE, Heading, Line, lines_of

_ATX = re.compile(r" {0,3}(#{1,6})(?=[ \t]|\Z)")
_SETEXT = re.compile(r" {0,3}(=+|-+)[ \t]*\Z")
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})(.*)\Z")
# Lines that cannot be the text of an underlined heading.
_NO_PARAGRAPH = re.compile(
    r" {4}|\t| {0,3}(?:>|[-*+][ \t]|\d{1,9}[.)][ \t]|\||<|([-*_])[ \t]*(?:\1[ \t]*){2,}\Z)|[ \t]*\Z"
)
_MAX_TITLE_LINES = 8  # a longer paragraph with a line below is no heading
_MAX_FRONT_MATTER = 200  # lines


def markdown_headings(text: str) -> Iterator[Heading]:
    fence = ""
    paragraph: list[Line] = []  # the lines that an underline would turn into a heading
    for line in after_front_matter(lines_of(text)):
        mark = _FENCE.match(line.text)
        if fence:
            closes = mark is not None and mark[1].startswith(fence) and not mark[2].strip()
            fence = "" if closes else fence
            continue
        if mark is not None and not (mark[1][0] == "`" and "`" in mark[2]):
            fence = mark[1]
            paragraph = []
            continue
        heading = atx_heading(line) or _setext_heading(paragraph, line)
        if heading is not None:
            yield heading
        if heading is not None or line.is_blank:
            paragraph = []
        elif paragraph or _begins_paragraph(line):
            paragraph = [*paragraph[:_MAX_TITLE_LINES], line]


def after_front_matter(lines: Iterator[Line]) -> Iterator[Line]:
    """Skips the block between --- and --- that many files begin with."""
    front = list(islice(lines, _MAX_FRONT_MATTER))
    ends = [
        index for index, line in enumerate(front) if index and line.text.rstrip() in ("---", "...")
    ]
    has_front_matter = ends and front[0].text.rstrip() == "---"
    yield from front[ends[0] + 1 :] if has_front_matter else front
    yield from lines


def atx_heading(line: Line) -> Heading | None:
    """A heading such as "## Title ##"."""
    match = _ATX.match(line.text)
    if match is None:
        return None
    title = line.text[match.end() :].strip()
    without_closing = title.rstrip("#")
    if not without_closing or without_closing[-1] in " \t":
        title = without_closing.rstrip()
    return Heading(line.start, len(match[1]), title) if len(title) <= MAX_TITLE else None


def is_setext_heading(line: Line, below: Line) -> bool:
    return _begins_paragraph(line) and _setext_heading([line], below) is not None


def _begins_paragraph(line: Line) -> bool:
    return _NO_PARAGRAPH.match(line.text) is None


def _setext_heading(paragraph: list[Line], line: Line) -> Heading | None:
    """A paragraph with a row of = or - below it."""
    match = _SETEXT.match(line.text)
    if match is None or not 0 < len(paragraph) <= _MAX_TITLE_LINES:
        return None
    title = " ".join(part.text.strip() for part in paragraph)
    if len(title) > MAX_TITLE:
        return None
    return Heading(paragraph[0].start, 1 if match[1][0] == "=" else 2, title)
