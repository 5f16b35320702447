"""How near a student's vectors are to its teacher's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from engine.evaluation.rankings import spearman, top_agreement
from engine.model.embedding_model import EmbeddingModel
from engine.training.encode import Vectors, vectors_of, window_means
from engine.training.token_corpus import TokenCorpus


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
