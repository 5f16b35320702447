"""Changes of a text, given as ranges of characters and what replaces them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Protocol

from engine.errors import InvalidInput

MAX_EDITS = 65_536
"""The most edits of one text."""


class Edit(Protocol):
    """Characters from `start` to before `end`, and the text in their place."""

    start: int
    end: int
    text: str


def check_num_edits(count: int) -> None:
    if count > MAX_EDITS:
        raise InvalidInput(
            f"edits holds {count} edits, the limit is {MAX_EDITS}",
            code="too_many_edits",
            param="edits",
            limit=MAX_EDITS,
            actual=count,
        )


def apply_edits(text: str, edits: Sequence[Edit]) -> str:
    """The text after all edits, which count in the text before any. Raises if one lies outside of
    it, or two overlap."""
    numbered = sorted(enumerate(edits), key=lambda item: (item[1].start, item[1].end))
    for index, edit in numbered:
        if not 0 <= edit.start <= edit.end <= len(text):
            raise InvalidInput(
                f"edits[{index}] is from {edit.start} to {edit.end}, the text has {len(text)} "
                "characters",
                code="invalid_edit",
                param=f"edits[{index}]",
                limit=len(text),
                actual=f"{edit.start}:{edit.end}",
            )
    for (before, first), (index, second) in pairwise(numbered):
        if second.start < first.end:
            raise InvalidInput(
                f"edits[{index}] begins at {second.start}, within edits[{before}], which ends at "
                f"{first.end}",
                code="overlapping_edits",
                param=f"edits[{index}]",
                limit=first.end,
                actual=second.start,
            )
    parts, position = [], 0
    for _, edit in numbered:
        parts += [text[position : edit.start], edit.text]
        position = edit.end
    return "".join([*parts, text[position:]])
