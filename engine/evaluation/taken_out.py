"""Questions that are paragraphs, taken out of the documents that should answer them.

A document's beginning often answers its title, so a model that reads no further does well. A
paragraph of the later half tells such models apart.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from engine.evaluation.corpora import Corpus
from engine.training.data import Document
from engine.training.paragraphs import can_be_query

_BETWEEN = "\n\n"


@dataclass(frozen=True)
class Questions:
    """Texts, each of which should find one document, given by its number."""

    texts: list[str]
    wanted: list[int]


class TakenOut(NamedTuple):
    corpus: Corpus  # without the paragraphs
    questions: Questions  # the paragraphs


def take_out_paragraphs(corpus: Corpus) -> TakenOut:
    """Cut one paragraph out of each document that has a fitting one, found nowhere else."""
    seen = Counter(part for document in corpus.documents for part in _paragraphs(document))
    rest: list[Document] = []
    texts: list[str] = []
    wanted: list[int] = []
    for number, document in enumerate(corpus.documents):
        paragraphs = document.body.split(_BETWEEN)
        fitting = [at for at in _later(paragraphs) if seen[paragraphs[at].strip()] == 1]
        if fitting:
            # Any of them, so that queries come from all over the later half.
            chosen = fitting[zlib.crc32(document.body.encode()) % len(fitting)]
            texts.append(paragraphs.pop(chosen).strip())
            wanted.append(number)
        rest.append(replace(document, body=_BETWEEN.join(paragraphs)))
    return TakenOut(Corpus(corpus.name, tuple(rest)), Questions(texts, wanted))


def _paragraphs(document: Document) -> Iterator[str]:
    return (part.strip() for part in document.body.split(_BETWEEN))


def _later(paragraphs: list[str]) -> Iterator[int]:
    """Paragraphs that begin in the later half of the text and have the length of a query."""
    middle = len(_BETWEEN.join(paragraphs)) / 2
    begin = 0
    for at, paragraph in enumerate(paragraphs):
        if begin >= middle and can_be_query(paragraph.strip()):
            yield at
        begin += len(paragraph) + len(_BETWEEN)
