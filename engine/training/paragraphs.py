"""Paragraphs as queries: they are taken out of their document, which should answer them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TypeAlias

Place: TypeAlias = tuple[int, int]
"""A text, and which of its paragraphs."""

_SHORTEST, _LONGEST = 200, 1200  # characters


def can_be_query(paragraph: str) -> bool:
    """Whether it is long enough to name its subject, and short enough for a question."""
    return _SHORTEST <= len(paragraph) <= _LONGEST


class Paragraphs:
    """The paragraphs of several texts, some of which can be taken out."""

    def __init__(self, texts: Sequence[str]) -> None:
        self._of_texts = [text.split("\n\n") for text in texts]

    def all(self) -> dict[Place, str]:
        """In order, as they stand in the texts."""
        return {
            (at, nth): paragraph
            for at, paragraphs in enumerate(self._of_texts)
            for nth, paragraph in enumerate(paragraphs)
        }

    def taken_out(self, places: Collection[Place]) -> tuple[list[str], list[list[str]]]:
        """The texts without the paragraphs at these places, and these paragraphs by text."""
        rest: list[str] = []
        taken: list[list[str]] = []
        for at, paragraphs in enumerate(self._of_texts):
            numbered = list(enumerate(paragraphs))
            rest.append("\n\n".join(one for nth, one in numbered if (at, nth) not in places))
            taken.append([one.strip() for nth, one in numbered if (at, nth) in places])
        return rest, taken
