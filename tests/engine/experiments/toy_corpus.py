"""A corpus of sixty short made-up documents, for experiments on text."""

from __future__ import annotations

from collections.abc import Iterator

from engine.evaluation.corpora import CorpusSource
from engine.training.data import Document


def read() -> Iterator[Document]:
    for number in range(60):
        words = (
            f"{number * word % 17} or {word * word % number}" for word in range(1, 40) if number
        )
        yield Document(str(number), "", f"text {number}: {' '.join(words)}")


TOY = CorpusSource("toy", read)
