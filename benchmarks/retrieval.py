"""Rows that compare models: cosine to their teacher, and retrieval of long documents."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import mean

from benchmarks.rows import Plan, Row
from engine.evaluation.corpora import (
    Corpus,
    LongDocuments,
    available,
    held_out_part,
    long_documents,
)
from engine.evaluation.fidelity import fidelity_at
from engine.evaluation.retrieval import Retrieval, retrieval_on
from engine.model.embedding_model import EmbeddingModel
from engine.training.token_corpus import TokenCorpus

DOCUMENTS = LongDocuments(most=20)
WINDOW = 512
WHOLE, LATE = "whole document", "best late chunk"
BASELINES = ("teacher, mean of windows", "teacher, best window")


def held_out_corpora(plan: Plan) -> list[Corpus]:
    """The held-out part of every installed corpus, or of one if it must be quick."""
    names = available()
    return [held_out_part(name) for name in (names[:1] if plan.quick else names)]


def cosine_rows(
    teacher: EmbeddingModel,
    students: Mapping[str, EmbeddingModel],
    corpora: Sequence[Corpus],
    *,
    length: int,
    texts: int,
) -> Iterator[Row]:
    """Cosine to the teacher's vectors; beyond its window, to the plain mean of its windows'."""
    bodies = [document.body for corpus in corpora for document in corpus.documents]
    tokens = TokenCorpus.of(bodies, teacher.tokenizer)
    theirs = "teacher" if length <= WINDOW else "teacher's windows"
    for one in fidelity_at(teacher, students, tokens, length, count=texts, window=WINDOW):
        measure = f"{length:,} tokens, mean cosine to the {theirs}"
        yield Row(case=one.model, measure=measure, value=one.mean_cosine, seconds={})


def retrieval_rows(
    teacher: EmbeddingModel, students: Mapping[str, EmbeddingModel], corpora: Sequence[Corpus]
) -> Iterator[Row]:
    """Mean reciprocal ranks, each the plain mean over corpora."""
    found: list[Retrieval] = []
    for corpus in corpora:
        long = long_documents(corpus, teacher, DOCUMENTS)
        if len(long.documents) >= DOCUMENTS.most:
            found += retrieval_on(teacher, students, long, window=WINDOW)
    for method in dict.fromkeys(one.method for one in found):
        name, _, way = method.rpartition(", ")
        if way in (WHOLE, LATE) or method in BASELINES:
            ranks = [one.quality.mrr for one in found if one.method == method]
            yield Row(
                case=name,
                measure=f"long documents, {way}, MRR",
                value=mean(ranks),
                seconds={},
                spread=(min(ranks), max(ranks)),
            )
