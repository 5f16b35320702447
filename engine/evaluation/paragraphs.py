"""Paragraphs as queries: they are taken out of their document, which should answer them."""

from __future__ import annotations

_SHORTEST, _LONGEST = 200, 1200  # characters


def can_be_query(paragraph: str) -> bool:
    """Whether it is long enough to name its subject, and short enough for a question."""
    return _SHORTEST <= len(paragraph) <= _LONGEST
