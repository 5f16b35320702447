"""How well students find long documents.

Students are compared with what the teacher can do itself: read the beginning only, average windows,
or keep a vector for every window.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from engine.evaluation.corpora import Corpus
from engine.evaluation.rankings import RetrievalQuality, best_of_parts, quality
from engine.evaluation.taken_out import Questions
from engine.execution.results import blend_standalone
from engine.model.embedding_model import EmbeddingModel
from engine.training.encode import (
    ReadWhole,
    Vectors,
    first_of,
    ids_of,
    means_of,
    read_whole,
    unit,
    vectors_of,
    window_means,
    window_spans,
    window_vectors,
)
from engine.types import Ids

ALONE_SHARE = 0.5
"""The weight of a chunk read alone in its late chunk's vector, for the methods 'half alone'."""

Scorer: TypeAlias = Callable[[Sequence[str], Sequence[str]], NDArray[np.float32]]
"""Scores every query against every document by their words."""


@dataclass(frozen=True, kw_only=True)
class Retrieval:
    corpus: str
    method: str
    quality: RetrievalQuality


def retrieval_on(
    teacher: EmbeddingModel,
    students: Mapping[str, EmbeddingModel],
    corpus: Corpus,
    *,
    window: int = 512,
    bm25: Scorer | None = None,
) -> list[Retrieval]:
    """Find each query's document by every method."""
    questions = Questions(corpus.queries, list(range(len(corpus.documents))))
    return DocumentsRead(teacher, students, corpus, window=window).found_by(questions, bm25)


class DocumentsRead:
    """A corpus as vectors of every method, computed once for any number of questions.

    A model reads the questions as it reads the documents.
    """

    def __init__(
        self,
        teacher: EmbeddingModel,
        students: Mapping[str, EmbeddingModel],
        corpus: Corpus,
        *,
        window: int = 512,
        half_alone: bool = False,
    ) -> None:
        self._teacher = teacher
        self._students = students
        self._corpus = corpus
        self._window = window
        texts = ids_of([document.body for document in corpus.documents], teacher.tokenizer)
        self._windows, self._owners = window_vectors(teacher, texts, window)
        stretches = [window_spans(len(text), teacher.tokenizer, window) for text in texts]
        self._read: dict[str, ReadWhole] = {}
        self._half_alone: dict[str, Vectors] = {}
        for name, student in students.items():
            read = self._read[name] = read_whole(student, texts, stretches)
            if half_alone:
                alone = self._windows_of(student, texts)
                self._half_alone[name] = unit(blend_standalone(read.late, alone, ALONE_SHARE))

    def _windows_of(self, student: EmbeddingModel, texts: Sequence[Ids]) -> Vectors:
        """The student's vectors of windows read alone, which may be the teacher's."""
        calibration = student.calibration
        if calibration and not calibration.adapted and self._window <= calibration.block_size:
            return self._windows
        return window_vectors(student, texts, self._window)[0]

    def found_by(self, questions: Questions, bm25: Scorer | None = None) -> list[Retrieval]:
        return [
            Retrieval(
                corpus=self._corpus.name,
                method=method,
                quality=quality(scores, questions.wanted, questions.wanted),
            )
            for method, scores in self._scores(questions.texts, bm25)
        ]

    def _scores(
        self, texts: Sequence[str], bm25: Scorer | None
    ) -> Iterator[tuple[str, NDArray[np.float32]]]:
        asked = ids_of(texts, self._teacher.tokenizer)
        queries = window_means(self._teacher, asked, self._window)
        parts, owners = self._windows, self._owners
        yield "teacher, the beginning", queries @ first_of(parts, owners).T
        yield "teacher, mean of windows", queries @ means_of(parts, owners).T
        yield "teacher, best window", best_of_parts(queries, parts, owners)
        for name, student in self._students.items():
            queries, read = vectors_of(student, asked), self._read[name]
            yield f"{name}, whole document", queries @ read.whole.T
            yield f"{name}, best late chunk", best_of_parts(queries, read.late, owners)
            if name in self._half_alone:
                half = best_of_parts(queries, self._half_alone[name], owners)
                yield f"{name}, best late chunk, half alone", half
        if bm25 is not None:
            yield "BM25", bm25(texts, [document.body for document in self._corpus.documents])


def bm25_scores(queries: Sequence[str], documents: Sequence[str]) -> NDArray[np.float32]:
    """BM25 scores of lowercased words, by the library rank-bm25."""
    from rank_bm25 import BM25Okapi

    index = BM25Okapi([document.lower().split() for document in documents])
    return np.stack([index.get_scores(query.lower().split()) for query in queries]).astype(
        np.float32
    )


def as_rows(results: Sequence[Retrieval]) -> list[dict[str, object]]:
    return [{"corpus": one.corpus, "method": one.method, **asdict(one.quality)} for one in results]
