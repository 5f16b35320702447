"""Measures of rankings: the ranks of what was wanted, and how much two rankings agree."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

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
    """The standard error of the mean of values that depend on each other within a cluster, as the
    queries of one document do; None for a single cluster. The number of values in a cluster is as
    random as they are.
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
