"""Texts of any length from a corpus: its long documents, and its short ones put together.

A volume of several documents has them one after the other as chapters, as a log, a wiki or a book
has its parts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from random import Random

from engine.training.data import Document


def volumes(
    documents: Sequence[Document], least: int, count: int, seed: int
) -> list[tuple[Document, ...]]:
    """At most `count` volumes of `least` characters or more: single documents first, then several
    together; each document is in one of them at most."""
    shuffled = list(documents)
    Random(seed).shuffle(shuffled)
    single = [(one,) for one in shuffled if len(one.body) >= least]
    return [*single, *islice(_joined(shuffled, least), max(0, count - len(single)))][:count]


def _joined(documents: Sequence[Document], least: int) -> Iterator[tuple[Document, ...]]:
    chapters: list[Document] = []
    length = 0
    for document in documents:
        if len(document.body) >= least:
            continue
        chapters.append(document)
        length += len(document.title) + len(document.body)
        if length >= least:
            yield tuple(chapters)
            chapters, length = [], 0
