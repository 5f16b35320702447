"""The sections of a text: from heading to heading, each with the headings it stands under."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from typing import NamedTuple

from engine.text.heading import Heading
from engine.text.headings_html import find_html, looks_like_html
from engine.text.headings_markdown import find_markdown, looks_like_markdown
from engine.text.headings_plain import find_plain
from engine.types import HeadingFormat, Span


class Section(NamedTuple):
    """A heading with the text up to the next one."""

    characters: Span
    headings: tuple[str, ...]  # outermost first, its own last; empty before the first heading


_FINDERS: dict[HeadingFormat, Callable[[str], Iterable[Heading]]] = {
    "markdown": find_markdown,
    "html": find_html,
    "plain": find_plain,
}


def sections(text: str, form: HeadingFormat) -> list[Section]:
    """The sections in order; together they are the whole text."""
    found = list(_FINDERS[detected(text) if form == "auto" else form](text))
    starts = [0, *(heading.start for heading in found), len(text)]
    paths = [(), *_paths(found)]
    return [
        Section(Span(start, end), path)
        for (start, end), path in zip(pairwise(starts), paths, strict=True)
        if start < end
    ]


def detected(text: str) -> HeadingFormat:
    """How headings seem to be written in a text."""
    if looks_like_html(text):
        return "html"
    return "markdown" if looks_like_markdown(text) else "plain"


def _paths(found: Iterable[Heading]) -> Iterator[tuple[str, ...]]:
    open_headings: list[Heading] = []
    for heading in found:
        while open_headings and open_headings[-1].level >= heading.level:
            open_headings.pop()
        open_headings.append(heading)
        yield tuple(outer.title for outer in open_headings)
