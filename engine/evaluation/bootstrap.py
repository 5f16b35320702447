"""Bootstrap intervals of means and of paired differences, resampled by documents.

The questions of one document are not independent: a resample draws whole documents. Over several
corpora the documents are drawn within each corpus, and each corpus counts alike. A corpus with one
document would always be drawn as it is, as if it were certain: it has no interval, and no part in
that of several corpora.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from engine.errors import InvalidInput

RESAMPLES = 2000
COVERAGE = 0.95

Values = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Interval:
    mean: float
    low: float
    high: float


@dataclass(frozen=True)
class Answers:
    """One value for each question, and the document that each question belongs to."""

    values: Values
    documents: NDArray[np.int64]

    def __post_init__(self) -> None:
        if len(self.values) != len(self.documents):
            raise InvalidInput(
                f"{len(self.values)} values for {len(self.documents)} documents of questions",
                code="unpaired_answers",
                limit=len(self.documents),
                actual=len(self.values),
            )

    @property
    def num_documents(self) -> int:
        """That have questions."""
        return len(np.unique(self.documents))


def minus(first: Answers, second: Answers) -> Answers:
    """The difference question by question; both must answer the same questions."""
    if not np.array_equal(first.documents, second.documents):
        raise InvalidInput("the two readings answered different questions", code="unpaired_answers")
    return Answers(first.values - second.values, first.documents)


def interval(answers: Answers, seed: int = 0) -> Interval | None:
    """The mean of one corpus's questions with its interval; None with fewer than two documents."""
    return pooled([answers], seed)


def pooled(corpora: Sequence[Answers], seed: int = 0) -> Interval | None:
    """The mean of the corpora's means with its interval, of those with two documents or more; None
    if there are none."""
    asked = [one for one in corpora if one.num_documents > 1]
    if not asked:
        return None
    generator = np.random.default_rng(seed)
    drawn = np.mean([_resampled_means(one, generator) for one in asked], axis=0)
    edge = 50 * (1 - COVERAGE)
    low, high = np.percentile(drawn, [edge, 100 - edge])
    return Interval(mean=mean_of_means(asked), low=float(low), high=float(high))


def mean_of_means(corpora: Sequence[Answers]) -> float:
    """The mean over the corpora that have questions, each counting alike; 0 if none has."""
    means = [float(one.values.mean()) for one in corpora if len(one.values)]
    return float(np.mean(means)) if means else 0.0


def _resampled_means(answers: Answers, generator: np.random.Generator) -> Values:
    """The mean over questions in each resample of the documents."""
    _, place = np.unique(answers.documents, return_inverse=True)
    sums = np.bincount(place, answers.values)
    counts = np.bincount(place)
    chosen = generator.integers(0, len(counts), (RESAMPLES, len(counts)))
    means: Values = sums[chosen].sum(1) / counts[chosen].sum(1)
    return means


def pooled_by_name(corpora: Mapping[str, Answers], seed: int = 0) -> dict[str, Interval | None]:
    """The interval of each corpus, and "pooled" over all."""
    return {
        **{name: interval(answers, seed) for name, answers in corpora.items()},
        "pooled": pooled(list(corpora.values()), seed),
    }
