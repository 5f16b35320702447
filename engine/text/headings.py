"""Finds the sections of a text: each heading with the text up to the next one.

Headings are found in three formats. `sections` takes the format, or detects it.

- Markdown: # before a line, or = and - below it. None in fenced code or front matter.
- HTML: h1 to h6. None in comments, scripts, styles and templates.
- Plain text: underlined, numbered or in capitals, on lines of their own. As in reStructuredText,
  the style that comes first is the outermost level; the dots of a number add levels.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from html import unescape
from itertools import islice, pairwise
from typing import NamedTuple

from engine.types import HeadingFormat, Span

MAX_TITLE = 500
"""Characters. A longer one is no title, and every passage below would repeat it."""


class Heading(NamedTuple):
    start: int  # the first character of its markup
    level: int  # 1 is the outermost
    title: str


class Line(NamedTuple):
    start: int
    text: str  # without the line break

    @property
    def is_blank(self) -> bool:
        return not self.text.strip()


_LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n|\Z)")
_BYTE_ORDER_MARK = "\ufeff"


def first_character(text: str) -> int:
    """Where a text begins: after the byte order mark that some editors put before it."""
    return len(_BYTE_ORDER_MARK) if text.startswith(_BYTE_ORDER_MARK) else 0


def lines_of(text: str) -> Iterator[Line]:
    for match in _LINE.finditer(text, first_character(text)):
        yield Line(match.start(), match[0].rstrip("\r\n"))


# Markdown

_ATX = re.compile(r" {0,3}(#{1,6})(?=[ \t]|\Z)")
_SETEXT = re.compile(r" {0,3}(=+|-+)[ \t]*\Z")
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})(.*)\Z")
# Lines that cannot be the text of an underlined heading.
_NO_PARAGRAPH = re.compile(
    r" {4}|\t| {0,3}(?:>|[-*+][ \t]|\d{1,9}[.)][ \t]|\||<|([-*_])[ \t]*(?:\1[ \t]*){2,}\Z)|[ \t]*\Z"
)
_MAX_TITLE_LINES = 8  # a longer paragraph with a line below is no heading
_MAX_FRONT_MATTER = 200  # lines


def _markdown_headings(text: str) -> Iterator[Heading]:
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


# HTML

_MARK = re.compile(
    r"<!--|<(?P<hidden>script|style|template)(?=[\s/>])|<h(?P<opens>[1-6])(?=[\s/>])[^<>]*>"
    r"|</h(?P<closes>[1-6])\s*>",
    re.IGNORECASE,
)
_TAG = re.compile(r"<[^<>]*>")


def html_headings(text: str) -> Iterator[Heading]:
    opening: re.Match[str] | None = None
    position = 0
    while (mark := _MARK.search(text, position)) is not None:
        position = mark.end()
        if mark["opens"]:
            opening = mark
        elif mark["closes"]:
            if (
                opening is not None
                and opening["opens"] == mark["closes"]
                and mark.start() - opening.end() <= MAX_TITLE
            ):
                title = unescape(_TAG.sub(" ", text[opening.end() : mark.start()]))
                yield Heading(opening.start(), int(opening["opens"]), " ".join(title.split()))
            opening = None
        else:
            position = _end_of_hidden(text, mark)


def _end_of_hidden(text: str, mark: re.Match[str]) -> int:
    """Where a comment or hidden element ends: at the end of the text if nothing closes it."""
    closing = "-->" if mark["hidden"] is None else f"</{mark['hidden']}"
    found = re.compile(re.escape(closing), re.IGNORECASE).search(text, mark.end())
    return len(text) if found is None else found.end()


# Plain text

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


def _plain_headings(text: str) -> Iterator[Heading]:
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


# The choice


class Section(NamedTuple):
    """A heading with the text up to the next one."""

    characters: Span
    headings: tuple[str, ...]  # outermost first, its own last; empty before the first heading


_FINDERS: Mapping[HeadingFormat, Callable[[str], Iterable[Heading]]] = {
    "markdown": _markdown_headings,
    "html": html_headings,
    "plain": _plain_headings,
}

_SAMPLE = 200_000  # characters that are searched for Markdown


def sections(text: str, form: HeadingFormat) -> list[Section]:
    """The sections in order; together they are the whole text, but for a byte order mark."""
    found = list(_FINDERS[detect_format(text) if form == "auto" else form](text))
    starts = [first_character(text), *(heading.start for heading in found), len(text)]
    paths = [(), *_paths(found)]
    return [
        Section(Span(start, end), path)
        for (start, end), path in zip(pairwise(starts), paths, strict=True)
        if start < end
    ]


def detect_format(text: str) -> HeadingFormat:
    """The format that the headings of a text seem to have."""
    if next(html_headings(text), None) is not None:
        return "html"
    start = text[:_SAMPLE]
    found = len(list(islice(_markdown_headings(start), 2)))
    # A single # may be a comment in another language, unless the text begins with it.
    begins_with_one = start[first_character(start) :].lstrip().startswith("#")
    is_markdown = found == 2 or (found == 1 and begins_with_one)
    return "markdown" if is_markdown else "plain"


def _paths(found: Iterable[Heading]) -> Iterator[tuple[str, ...]]:
    """The titles that each heading stands under, its own last."""
    open_headings: list[Heading] = []
    for heading in found:
        while open_headings and open_headings[-1].level >= heading.level:
            open_headings.pop()
        open_headings.append(heading)
        yield tuple(outer.title for outer in open_headings)
