"""How good a student is: how near it is to its teacher, and how well it finds long documents.

A document's beginning often answers its title, so a model that reads no further does well. A query
that is a paragraph of the later half, cut out of the document, tells such models apart. Students
are compared with what the teacher can do itself: read the beginning only, average windows, or keep
a vector for every window.
"""

from __future__ import annotations

import math
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from engine.evaluation.corpora import Corpus
from engine.evaluation.paragraphs import can_be_query
from engine.execution.results import blend_standalone
from engine.model.embedding_model import EmbeddingModel
from engine.training.data import Document, TokenCorpus
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

Scores = NDArray[np.float32]  # [queries, documents]


@dataclass(frozen=True, kw_only=True)
class RetrievalQuality:
    queries: int
    documents: int
    recall_at_1: float
    recall_at_10: float
    mrr: float
    ndcg_at_10: float
    mrr_standard_error: float | None
    """None where the queries are all about one document."""


def quality(scores: Scores, wanted: Sequence[int], asked_of: Sequence[int]) -> RetrievalQuality:
    """Measure a ranking; `wanted` is the column that each query should find, `asked_of` the number
    of the document that it is about."""
    ranks = ranks_of(scores, wanted)
    reciprocal = 1.0 / ranks
    return RetrievalQuality(
        queries=len(ranks),
        documents=scores.shape[1],
        recall_at_1=float((ranks == 1).mean()),
        recall_at_10=float((ranks <= 10).mean()),
        mrr=float(reciprocal.mean()),
        ndcg_at_10=float(np.where(ranks <= 10, 1.0 / np.log2(ranks + 1), 0.0).mean()),
        mrr_standard_error=clustered_standard_error(reciprocal, asked_of),
    )


def clustered_standard_error(
    values: NDArray[np.float64], clusters: Sequence[int] | NDArray[np.int64]
) -> float | None:
    """Of the mean of values that depend on each other within a cluster, as the queries of one
    document do; None for a single cluster. The number of values in a cluster is as random as they.
    """
    _, place = np.unique(np.asarray(clusters), return_inverse=True)
    sums = np.bincount(place, values - values.mean())
    count = len(sums)
    if count < 2:
        return None
    return math.sqrt(count / (count - 1) * float(np.square(sums).sum())) / len(values)


def ranks_of(scores: Scores, wanted: Sequence[int]) -> NDArray[np.int64]:
    """Ranks from 1. Among equal scores, and among NaN, the wanted document comes last."""
    own = scores[np.arange(len(scores)), np.asarray(wanted)]
    ranks: NDArray[np.int64] = (~(scores < own[:, None])).sum(1)
    return ranks


def best_of_parts(
    queries: NDArray[np.float32], parts: NDArray[np.float32], owners: Sequence[int]
) -> Scores:
    """Score each document by its best part; `owners` are the parts' documents, ascending."""
    by_part = queries @ parts.T
    starts = np.flatnonzero(np.diff(np.asarray(owners), prepend=-1))
    best: Scores = np.maximum.reduceat(by_part, starts, axis=1)
    return best


def spearman(first: NDArray[np.float64], second: NDArray[np.float64]) -> float:
    """The rank correlation of two lists of numbers; 0 if all numbers of a list are equal."""
    a, b = _mean_ranks(first), _mean_ranks(second)
    if not (np.ptp(a) and np.ptp(b)):
        return 0.0
    return float(np.corrcoef(a, b)[0, 1])


def _mean_ranks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Ranks; equal values share the mean of theirs."""
    _, places, counts = np.unique(values, return_inverse=True, return_counts=True)
    ranks: NDArray[np.float64] = (np.cumsum(counts) - (counts - 1) / 2)[places]
    return ranks


def top_agreement(mine: Scores, theirs: Scores, count: int = 10) -> float:
    """The share of each row's best `count` columns that both have."""
    tops = [np.argpartition(-scores, count - 1, axis=1)[:, :count] for scores in (mine, theirs)]
    shared = [len(np.intersect1d(a, b)) for a, b in zip(*tops, strict=True)]
    return float(np.mean(shared) / count)


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


ALONE_SHARE = 0.5
"""The weight of a chunk read alone in its late chunk's vector, for the methods 'half alone'."""

Scorer: TypeAlias = Callable[[Sequence[str], Sequence[str]], NDArray[np.float32]]
"""Scores every query against every document by their words."""


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
    """Compare windows of one length; beyond `window` the teacher's vector is a mean of windows."""
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
