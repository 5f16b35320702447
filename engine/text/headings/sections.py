"""Finds the sections of a text, in a format that is given or detected."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice, pairwise
from typing import NamedTuple

from engine.text.headings.heading import Heading, first_character
from engine.text.headings.html import html_headings
from engine.text.headings.markdown import markdown_headings
from engine.text.headings.plain import plain_headings
from engine.types import HeadingFormat, Span


class Section(NamedTuple):
    """A heading with the text up to the next one."""

    characters: Span
    headings: tuple[str, ...]  # outermost first, its own last; empty before the first heading


_FINDERS: Mapping[HeadingFormat, Callable[[str], Iterable[Heading]]] = {
    "markdown": markdown_headings,
    "html": html_headings,
    "plain": plain_headings,
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
    found = len(list(islice(markdown_headings(start), 2)))
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
