"""Passages below a document's headings, with queries that name the document and the heading."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from engine.text.headings.sections import sections
from engine.training.data import Document
from engine.training.token_corpus import TokenRange
from engine.types import Ids

SHORTEST_PASSAGE, LONGEST_PASSAGE = 24, 200
"""The most tokens of a passage. A longer section's beginning is its passage."""

_MIN_SECTIONS = 3
_MAX_HEADING_LINES = 9  # a longer paragraph above a line of marks is no heading


@dataclass(frozen=True)
class Passage:
    """The text below a heading, and a query that names the document and the heading."""

    query: str
    text: str


def passages_of(document: Document) -> list[Passage]:
    """The sections of a titled document, without their headings; none if there are too few.

    A query names the title and the heading, which the passage itself does not contain. It is found
    only if its vector knows the document around it.
    """
    if not document.title:
        return []
    found = [
        Passage(f"{document.title}: {section.headings[-1]}", text)
        for section in sections(document.body, "auto")
        if section.headings
        and (text := _below_heading(document.body[slice(*section.characters)]).strip())
    ]
    return found if len(found) >= _MIN_SECTIONS else []


def _below_heading(text: str) -> str:
    lines = text.splitlines(keepends=True)
    for at, line in enumerate(lines[1:_MAX_HEADING_LINES], start=1):
        if not line.strip():
            break
        if not any(character.isalnum() for character in line):
            return "".join(lines[at + 1 :])
    return "".join(lines[1:])


def passage_spans(parts: Sequence[Ids], length: int | None = None) -> list[TokenRange]:
    """Where the passages are in a document of `length` tokens: its title, then the passages.

    Spans are cut to the length of a passage.
    """
    starts = list(accumulate((len(part) for part in parts), initial=0))
    end_of_text = starts[-1] if length is None else length
    return [
        (start, min(end, start + LONGEST_PASSAGE, end_of_text))
        for start, end in pairwise(starts[1:])
    ]


def is_long_enough(span: TokenRange) -> bool:
    return span[1] - span[0] >= SHORTEST_PASSAGE
