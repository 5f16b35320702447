"""Finds the title that a text begins with.

It is a heading (Markdown, HTML, underlined, numbered or in capitals), or a short line of its own,
with nothing before it but blank lines and front matter. In HTML, an h1 may stand further down:
what pages have above it is mostly navigation.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import dropwhile, islice
from typing import NamedTuple

from engine.text.headings.heading import Heading, Line, first_character, lines_of
from engine.text.headings.html import html_headings
from engine.text.headings.markdown import after_front_matter, atx_heading, is_setext_heading
from engine.text.headings.plain import heading_at, is_boxed
from engine.types import Span

HEAD_CHARACTERS = 1_000
"""Characters of a text that are searched for its title."""

MAX_LINE = 120
"""Characters of a line of its own that may be a title. A longer one is a paragraph."""

_NOT_AT_END = ",;:，、；：،؛"
"""What a greeting or the introduction of a list ends with."""


class Titles(NamedTuple):
    """The title of a document: given by the caller, or found in the text."""

    told: str | None = None
    found: Span | None = None
    """Characters at the beginning of the text; looked for only if the caller gives no title."""

    def within(self, end: int) -> Titles:
        """The same, without a title that is found beyond the first `end` characters."""
        return Titles(self.told) if self.found is not None and self.found.end > end else self


NO_TITLES = Titles()


def titles_of(text: str, told: str | None) -> Titles:
    return Titles(found=title_span(text)) if told is None else Titles(told=told)


def title_span(head: str) -> Span | None:
    """The characters of the title, its markup left out; None if the text begins with none.

    `head` is the text's beginning; what comes after HEAD_CHARACTERS is not looked at.
    """
    head = head[:HEAD_CHARACTERS]
    is_html = head[first_character(head) :].lstrip().startswith("<")
    title = _html_title(head) if is_html else _title_line(head)
    if title is None or not _has_words(head[slice(*title)]) or not head[title.end :].strip():
        return None  # it says nothing, or the text is nothing else
    return title


def is_visible(text: str) -> bool:
    """Whether a reader sees anything of a text, or of a long one's beginning: spaces and characters
    of control do not show."""
    beginning = text.strip()[:HEAD_CHARACTERS]
    return any(letter.isprintable() and not letter.isspace() for letter in beginning)


def _has_words(text: str) -> bool:
    return any(character.isalnum() for character in text)


# HTML

_NOT_SHOWN = re.compile(
    r"<!--.*?-->|<(?P<element>head|script|style|template)(?=[\s/>]).*?</(?P=element)\s*>|<[^<>]*>",
    re.IGNORECASE | re.DOTALL,
)
_MARKUP_BEFORE = re.compile(r"(?:\s|<[^<>]*>)*")
_MARKUP_AFTER = re.compile(r"(?:\s|<[^<>]*>)*\Z")


def _html_title(head: str) -> Span | None:
    heading = next((one for one in html_headings(head) if one.title), None)
    if heading is None or (heading.level > 1 and _shows_words(head[: heading.start])):
        return None
    return _without_markup(head, _content_of(head, heading))


def _shows_words(html: str) -> bool:
    return _has_words(_NOT_SHOWN.sub(" ", html))


def _content_of(head: str, heading: Heading) -> Span:
    start = head.index(">", heading.start) + 1
    closing = re.compile(rf"</h{heading.level}\s*>", re.IGNORECASE).search(head, start)
    assert closing is not None, "a heading is found by its end"
    return Span(start, closing.start())


def _without_markup(head: str, span: Span) -> Span:
    """The span without tags and white space at its ends; there is text between them."""
    before = _MARKUP_BEFORE.match(head, *span)
    after = _MARKUP_AFTER.search(head, *span)
    assert before is not None, "it matches nothing, too"
    assert after is not None, "it matches nothing, too"
    return Span(before.end(), after.start())


# Lines


def _title_line(head: str) -> Span | None:
    first, second, third = _first_three(after_front_matter(lines_of(head)))
    if first.is_blank:
        return None
    heading = atx_heading(first)
    if heading is not None:
        start = head.index("#", first.start) + heading.level
        return _trimmed(head, Span(start, head.index(heading.title, start) + len(heading.title)))
    if is_boxed(first, second, third):
        return _trimmed(head, Span(second.start, _end(second)))
    found, _ = heading_at(first, second, third)
    if found is None and not is_setext_heading(first, second) and not _stands_alone(first, second):
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
