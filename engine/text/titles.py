"""Finds the title that a text begins with.

It is a heading (Markdown, HTML, underlined, numbered or in capitals), or a short line of its own,
with nothing before it but blank lines and front matter.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import dropwhile, islice
from typing import NamedTuple

from engine.text.headings import (
    Line,
    after_front_matter,
    atx_heading,
    heading_at,
    html_headings,
    is_boxed,
    lines_of,
)
from engine.types import Span

HEAD_CHARACTERS = 1_000
"""Characters of a text that are searched for its title."""

MAX_LINE = 120
"""Characters of a line of its own that may be a title. A longer one is a paragraph."""

_NOT_AT_END = ",;:"
"""What a greeting or the introduction of a list ends with."""


class Titles(NamedTuple):
    """The title of a document: given by the caller, or found in the text."""

    told: str | None = None
    found: Span | None = None
    """Characters at the beginning of the text; looked for only if the caller gives no title."""


NO_TITLES = Titles()


def titles_of(text: str, told: str | None) -> Titles:
    return Titles(found=title_span(text)) if told is None else Titles(told=told)


def title_span(head: str) -> Span | None:
    """The characters of the title, its markup left out; None if the text begins with none.

    `head` is the text's beginning; what comes after HEAD_CHARACTERS is not looked at.
    """
    head = head[:HEAD_CHARACTERS]
    title = _html_title(head) if head.lstrip().startswith("<") else _title_line(head)
    if title is None or not head[title.end :].strip():
        return None  # the text is nothing else
    return title


def _html_title(head: str) -> Span | None:
    heading = next(html_headings(head), None)
    if heading is None:
        return None
    start = head.index(">", heading.start) + 1
    return _trimmed(head, Span(start, head.lower().index(f"</h{heading.level}", start)))


def _title_line(head: str) -> Span | None:
    first, second, third = _first_three(after_front_matter(lines_of(head)))
    if first.is_blank:
        return None
    heading = atx_heading(first)
    if heading is not None:
        start = head.index("#", first.start) + heading.level
        return _trimmed(head, Span(start, _end(first))) if heading.title else None
    if is_boxed(first, second, third):
        return _trimmed(head, Span(second.start, _end(second)))
    found, _ = heading_at(first, second, third)
    if found is None and not _stands_alone(first, second):
        return None
    return _trimmed(head, Span(first.start, _end(first)))


def _first_three(lines: Iterator[Line]) -> list[Line]:
    """The first line that is not blank and the next two, which are empty where there are none."""
    found = list(islice(dropwhile(lambda line: line.is_blank, lines), 3))
    return [*found, *[Line(0, "")] * (3 - len(found))]


def _stands_alone(line: Line, below: Line) -> bool:
    text = line.text.strip()
    return (
        below.is_blank
        and len(text) <= MAX_LINE
        and text[-1] not in _NOT_AT_END
        and any(character.isalpha() for character in text)
    )


def _end(line: Line) -> int:
    return line.start + len(line.text)


def _trimmed(text: str, span: Span) -> Span:
    piece = text[span.start : span.end]
    start = span.start + len(piece) - len(piece.lstrip())
    return Span(start, start + len(piece.strip()))
