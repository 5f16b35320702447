"""Later paragraphs taken out of long documents: what only those who read so far can be asked by.

A title is answered by a document's beginning, and whoever reads no further does well. A paragraph
of the later half is not.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from engine.adapt.corpora import PARAGRAPH_CHARACTERS, Corpus
from engine.adapt.documents import Document

_BETWEEN = "\n\n"


@dataclass(frozen=True)
class Questions:
    """Texts that each ask for one document, by its number."""

    texts: list[str]
    wanted: list[int]


class TakenOut(NamedTuple):
    corpus: Corpus  # without the paragraphs
    questions: Questions  # the paragraphs


def take_out_paragraphs(corpus: Corpus) -> TakenOut:
    """One of each document, if any that is neither short nor long stands nowhere else."""
    seen = Counter(part for document in corpus.documents for part in _paragraphs(document))
    rest: list[Document] = []
    texts: list[str] = []
    wanted: list[int] = []
    for number, document in enumerate(corpus.documents):
        paragraphs = document.body.split(_BETWEEN)
        fitting = [at for at in _later(paragraphs) if seen[paragraphs[at].strip()] == 1]
        if fitting:
            # Any of them, so that all places of the later half are asked for.
            chosen = fitting[zlib.crc32(document.body.encode()) % len(fitting)]
            texts.append(paragraphs.pop(chosen).strip())
            wanted.append(number)
        rest.append(replace(document, body=_BETWEEN.join(paragraphs)))
    return TakenOut(Corpus(corpus.name, tuple(rest)), Questions(texts, wanted))


def _paragraphs(document: Document) -> Iterator[str]:
    return (part.strip() for part in document.body.split(_BETWEEN))


def _later(paragraphs: list[str]) -> Iterator[int]:
    """Those that begin in the later half of the text and are as long as a question may be."""
    middle = len(_BETWEEN.join(paragraphs)) / 2
    least, most = PARAGRAPH_CHARACTERS
    begin = 0
    for at, paragraph in enumerate(paragraphs):
        if begin >= middle and least <= len(paragraph.strip()) <= most:
            yield at
        begin += len(paragraph) + len(_BETWEEN)
