"""How good a student is: near to its teacher, and at finding long documents.

Everything is compared with what the teacher can do itself: read the beginning alone, average
windows, or keep a vector for every window.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from engine.adapt.batches import TokenCorpus
from engine.adapt.corpora import Corpus
from engine.adapt.paragraphs import Questions
from engine.adapt.retrieval import RetrievalQuality, best_of_parts, quality, spearman, top_agreement
from engine.adapt.vectors import (
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
from engine.model.embedding_model import EmbeddingModel
from engine.runner import partly_alone
from engine.types import Ids

ALONE_SHARE = 0.5
"""Of what is read alone in a late chunk's vector, where that is asked for."""

Scorer: TypeAlias = Callable[[Sequence[str], Sequence[str]], NDArray[np.float32]]
"""Scores every query against every document, by their words."""


@dataclass(frozen=True, kw_only=True)
class Fidelity:
    """How near the student's vectors are to the teacher's, for texts of one length."""

    model: str
    tokens: int
    texts: int
    mean_cosine: float
    cosine_5th_percentile: float
    top_10_agreement: float
    spearman: float


def fidelity_at(
    teacher: EmbeddingModel,
    students: Mapping[str, EmbeddingModel],
    corpus: TokenCorpus,
    length: int,
    *,
    count: int = 200,
    window: int = 512,
    seed: int = 1,
) -> list[Fidelity]:
    """On windows of one length; beyond `window` the teacher's is the mean of its windows'."""
    batch = corpus.batch(length, count, np.random.default_rng([seed, length]))
    texts = [batch.ids[start:end].numpy() for start, end in batch.spans]
    theirs = window_means(teacher, texts, window)
    return [
        _fidelity(name, vectors_of(student, texts), theirs, length)
        for name, student in students.items()
    ]


def _fidelity(name: str, mine: Vectors, theirs: Vectors, length: int) -> Fidelity:
    count = len(mine)
    cosines = (mine * theirs).sum(1)
    own, other = mine @ mine.T, theirs @ theirs.T
    apart = ~np.eye(count, dtype=bool)
    np.fill_diagonal(own, -np.inf)
    np.fill_diagonal(other, -np.inf)
    return Fidelity(
        model=name,
        tokens=length,
        texts=count,
        mean_cosine=float(cosines.mean()),
        cosine_5th_percentile=float(np.percentile(cosines, 5)),
        top_10_agreement=top_agreement(own, other, min(10, count - 1)),
        spearman=spearman(own[apart].astype(np.float64), other[apart].astype(np.float64)),
    )


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
    """Queries against the documents they were taken from, by every way there is."""
    questions = Questions(corpus.queries, list(range(len(corpus.documents))))
    return DocumentsRead(teacher, students, corpus, window=window).found_by(questions, bm25)


class DocumentsRead:
    """A corpus as vectors, made once in every way there is, to be asked any questions.

    Every model reads the questions as it reads the documents.
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
                self._half_alone[name] = unit(partly_alone(read.late, alone, ALONE_SHARE))

    def _windows_of(self, student: EmbeddingModel, texts: Sequence[Ids]) -> Vectors:
        """As the student reads each window alone; many a student reads them as its teacher does."""
        calibration = student.calibration
        if calibration and not calibration.adapted and self._window <= calibration.block_size:
            return self._windows
        return window_vectors(student, texts, self._window)[0]

    def found_by(self, questions: Questions, bm25: Scorer | None = None) -> list[Retrieval]:
        return [
            Retrieval(
                corpus=self._corpus.name,
                method=method,
                quality=quality(scores, questions.wanted),
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


@dataclass(frozen=True, kw_only=True)
class PositionRecall:
    """How well documents are found by a passage planted at one place of them."""

    position: float  # 0 the beginning, 1 the end
    quality: RetrievalQuality


def recall_by_position(
    student: EmbeddingModel,
    corpus: TokenCorpus,
    *,
    length: int = 2048,
    count: int = 100,
    planted_tokens: int = 128,
    positions: Sequence[float] = (0.0, 0.25, 0.5, 0.75, 1.0),
    seed: int = 2,
) -> list[PositionRecall]:
    """Every document gets a passage of another one; its first half must find the document."""
    generator = np.random.default_rng(seed)
    batch = corpus.batch(length - planted_tokens, count, generator)
    hosts = [batch.ids[start:end].numpy() for start, end in batch.spans]
    planted = corpus.batch(planted_tokens + 2, count, generator)
    passages = [planted.ids[start + 1 : end - 1].numpy() for start, end in planted.spans]
    first, last = hosts[0][:1], hosts[0][-1:]
    halves = [np.concatenate([first, passage[: planted_tokens // 2], last]) for passage in passages]
    queries = vectors_of(student, halves)
    results = []
    for position in positions:
        at = 1 + round(position * (len(hosts[0]) - 2))
        documents = [
            np.concatenate([host[:at], passage, host[at:]])
            for host, passage in zip(hosts, passages, strict=True)
        ]
        scores = queries @ vectors_of(student, documents).T
        results.append(PositionRecall(position=position, quality=quality(scores, range(count))))
    return results


def bm25_scores(queries: Sequence[str], documents: Sequence[str]) -> NDArray[np.float32]:
    """By the library rank-bm25, on lowercased words."""
    from rank_bm25 import BM25Okapi

    index = BM25Okapi([document.lower().split() for document in documents])
    return np.stack([index.get_scores(query.lower().split()) for query in queries]).astype(
        np.float32
    )


def as_rows(results: Sequence[Retrieval]) -> list[dict[str, object]]:
    return [{"corpus": one.corpus, "method": one.method, **asdict(one.quality)} for one in results]
