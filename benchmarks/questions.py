"""Questions about real text of corpora that `default` was not trained on; `documents` was, in part.

Short texts are passages found by their document's title and their heading. Long documents are found
by a paragraph that was taken out of their later half, and by their titles. Differences between two
ways to find them come with bootstrap intervals, resampled by documents.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from benchmarks.rows import Plan, Row
from engine.errors import InvalidInput
from engine.evaluation.bootstrap import Answers, Interval, minus, pooled
from engine.evaluation.corpora import Corpus, LongDocuments, available, load_corpus, long_documents
from engine.evaluation.rankings import ranks_of
from engine.evaluation.taken_out import take_out_paragraphs
from engine.model.embedding_model import EmbeddingModel
from engine.training.heading_passages import passages_of

CUTOFF = 10
"""The reciprocal rank of an answer below this rank is 0."""

MOST_CORPORA = 6
LONG = LongDocuments(shortest=1500, longest=4000, most=6)
_PASSAGES_A_DOCUMENT = 12
_SHORTEST, _LONGEST = 200, 1500  # characters of a passage

Scores: TypeAlias = NDArray[np.float32]  # [queries, texts]


@dataclass(frozen=True)
class QuestionSet:
    """Queries, each of which one text should answer."""

    corpus: str
    queries: list[str]
    texts: list[str]
    wanted: list[int]
    documents: list[int]  # of each query


def new_corpora(plan: Plan) -> Iterator[Corpus]:
    """In an order of documents that depends on their text alone."""
    names = available(new=True)
    if not names:
        raise InvalidInput(
            "no corpus outside training is installed; docs/evaluation/README.md has their packages",
            code="missing_package",
        )
    for name in names[: 1 if plan.quick else MOST_CORPORA]:
        corpus = load_corpus(name)
        by_hash = sorted(
            corpus.documents, key=lambda one: hashlib.sha256(one.body.encode()).digest()
        )
        yield Corpus(name, tuple(by_hash))


def passage_questions(corpus: Corpus, most: int) -> QuestionSet:
    found = QuestionSet(corpus.name, [], [], [], [])
    for number, document in enumerate(corpus.documents):
        for passage in passages_of(document)[:_PASSAGES_A_DOCUMENT]:
            if len(passage.text) > _SHORTEST and len(found.texts) < most:
                found.wanted.append(len(found.texts))
                found.queries.append(passage.query)
                found.texts.append(passage.text[:_LONGEST])
                found.documents.append(number)
    return found


def document_questions(corpus: Corpus, model: EmbeddingModel) -> tuple[QuestionSet, QuestionSet]:
    """The same documents, to be found by a paragraph of theirs, and by their titles."""
    long = long_documents(corpus, model, LONG)
    rest, paragraphs = take_out_paragraphs(long)
    texts = [document.body for document in rest.documents]
    everyone = list(range(len(texts)))
    by_paragraph = QuestionSet(
        corpus.name, paragraphs.texts, texts, paragraphs.wanted, paragraphs.wanted
    )
    return by_paragraph, QuestionSet(corpus.name, long.queries, texts, everyone, everyone)


@dataclass
class Contest:
    """Reciprocal ranks of several ways to answer the same questions, corpus by corpus."""

    base: str
    """The way that the others are compared with."""
    answers: dict[str, list[Answers]] = field(default_factory=dict)

    def add(self, questions: QuestionSet, scores: Mapping[str, Scores]) -> None:
        for way, found in scores.items():
            ranks = ranks_of(found, questions.wanted)
            reciprocal = np.where(ranks <= CUTOFF, 1.0 / ranks, 0.0)
            documents = np.asarray(questions.documents, np.int64)
            self.answers.setdefault(way, []).append(Answers(reciprocal, documents))

    def rows(self, case: str) -> Iterator[Row]:
        """MRR@10 of the base, and every other way's minus the base's. The spread is the 95 %
        interval."""
        base = self.answers[self.base]
        yield _row(case, f"{self.base}: MRR@{CUTOFF}", pooled(base))
        for way, answers in self.answers.items():
            if way != self.base:
                differences = [minus(one, other) for one, other in zip(answers, base, strict=True)]
                yield _row(case, f"{way}: minus {self.base}, 95 % interval", pooled(differences))


def _row(case: str, measure: str, found: Interval | None) -> Row:
    assert found is not None, "every corpus has questions"
    return Row(
        case=case,
        measure=measure,
        value=found.mean,
        seconds={},
        spread=(found.low, found.high),
    )


def top_agreement(mine: Scores, exact: Scores, count: int = 10) -> float:
    """The share of each query's best texts that both have."""
    tops = [np.argsort(-scores, axis=1)[:, :count] for scores in (mine, exact)]
    return float(np.mean([len(np.intersect1d(a, b)) / count for a, b in zip(*tops, strict=True)]))
