"""Readings of a passage, from alone to within its whole document, as vectors to compare."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from engine.evaluation.bootstrap import Answers
from engine.evaluation.corpus_vectors import Asked, CorpusVectors, Parts
from engine.evaluation.evened_titles import with_title
from engine.evaluation.rankings import ranks_of
from engine.execution.results import add_opening, blend_standalone
from engine.training.encode import Vectors, unit

CUTOFF = 10
"""The reciprocal rank of an answer below this rank is 0."""

PartName: TypeAlias = Literal["passages", "chunks", "openings", "found"]


@dataclass(frozen=True, kw_only=True)
class Reading:
    """A way to read a part of a document: shares of what its vector is made of."""

    late: float = 0.0  # the rest is the part read alone
    linked: bool = False  # parts read alone are linked by LLN
    without_lln: bool = False
    title_before: bool = False
    opening: float = 0.0
    found_title: float = 0.0  # in place of the opening, where the text begins with a title
    mean: float = 0.0
    title: float = 0.0  # told
    evens_title: bool = False  # titles, read alone, weigh the same in every part
    model: str = ""  # another model's late chunks, which read nothing alone

    def vectors(self, corpus: CorpusVectors, kind: PartName) -> Vectors:
        if self.title_before:
            return corpus.titled
        mixed = self._mixed(corpus, kind)
        owners = getattr(corpus, kind).owners
        for shares, vectors in self._added(corpus):
            if any(shares):
                by_document = [
                    add_opening(mixed[owners == at], vectors[at], share)
                    for at, share in enumerate(shares)
                ]
                mixed = np.concatenate(by_document)
        if self.evens_title:
            mixed = self._with_titles(mixed, owners, corpus)
        return unit(mixed)

    def _with_titles(
        self, mixed: Vectors, owners: NDArray[np.int64], corpus: CorpusVectors
    ) -> Vectors:
        titles = corpus.titles if self.title else corpus.found.alone
        weights = np.full(corpus.num_documents, self.title)
        if self.found_title:
            weights = np.where(corpus.has_title, self.found_title, 0.0)
        by_document = [
            with_title(mixed[owners == at], titles[at], weight)
            for at, weight in enumerate(weights.tolist())
        ]
        return np.concatenate(by_document)

    def _added(self, corpus: CorpusVectors) -> Iterator[tuple[Sequence[float], Vectors]]:
        """What is added to the parts of each document, and how much of it."""
        count = corpus.num_documents
        if self.found_title:
            of_title = 0.0 if self.evens_title else self.found_title
            shares = np.where(corpus.has_title, of_title, self.opening).tolist()
            yield shares, self._mixed(corpus, "found")
        else:
            yield [self.opening] * count, self._mixed(corpus, "openings")
        yield [self.mean] * count, corpus.means
        yield [0.0 if self.evens_title else self.title] * count, corpus.titles

    def wholes(self, corpus: CorpusVectors) -> Vectors:
        """Vectors of the whole documents."""
        if self.model:
            return corpus.others[self.model].wholes
        if not self.late and not self.linked:
            return corpus.means
        return corpus.wholes_without_lln if self.without_lln else corpus.wholes

    def heading_queries(self, corpus: CorpusVectors) -> Vectors:
        other = corpus.others.get(self.model)
        return corpus.by_heading.vectors if other is None else other.heading_queries

    def paragraph_queries(self, corpus: CorpusVectors) -> Vectors:
        other = corpus.others.get(self.model)
        return corpus.by_paragraph.vectors if other is None else other.paragraph_queries

    def _mixed(self, corpus: CorpusVectors, kind: PartName) -> Vectors:
        if self.model:
            other = corpus.others[self.model]
            late: Vectors = other.linked[kind] if self.linked else getattr(other, kind)
            return unit(late)
        parts: Parts = getattr(corpus, kind)
        alone = parts.linked if self.linked and not self.without_lln else parts.alone
        late = parts.late_without_lln if self.without_lln else parts.late
        return unit(blend_standalone(late, alone, 1 - self.late))


def answers_by_heading(corpus: CorpusVectors, reading: Reading) -> Answers:
    """The reciprocal rank of each query's passage among all passages of the corpus."""
    passages = reading.vectors(corpus, "passages")
    return answers_of_passages(reading.heading_queries(corpus), passages, corpus.by_heading)


def answers_of_passages(queries: Vectors, passages: Vectors, asked: Asked) -> Answers:
    return Answers(_reciprocal_ranks(queries @ passages.T, asked.wanted), asked.documents)


def answers_by_paragraph(corpus: CorpusVectors, reading: Reading) -> Answers:
    """The reciprocal rank of each paragraph's document, which is as good as its best chunk."""
    queries, chunks = reading.paragraph_queries(corpus), reading.vectors(corpus, "chunks")
    return answers_of_documents(queries, chunks, corpus.chunks.owners, corpus.by_paragraph)


def answers_of_documents(
    queries: Vectors, chunks: Vectors, owners: NDArray[np.int64], asked: Asked
) -> Answers:
    """`owners` are the documents of the chunks, in order."""
    starts = np.flatnonzero(np.diff(owners, prepend=-1))
    scores = np.maximum.reduceat(queries @ chunks.T, starts, axis=1)
    return Answers(_reciprocal_ranks(scores, asked.wanted), asked.documents)


def answers_by_paragraph_whole(corpus: CorpusVectors, reading: Reading) -> Answers:
    """The same with one vector for each whole document."""
    scores = reading.paragraph_queries(corpus) @ reading.wholes(corpus).T
    asked = corpus.by_paragraph
    return Answers(_reciprocal_ranks(scores, asked.wanted), asked.documents)


def _reciprocal_ranks(
    scores: NDArray[np.float32], wanted: NDArray[np.int64]
) -> NDArray[np.float64]:
    if not len(wanted):
        return np.zeros(0)
    ranks = ranks_of(scores, wanted.tolist())
    values: NDArray[np.float64] = np.where(ranks <= CUTOFF, 1 / ranks, 0.0)
    return values
