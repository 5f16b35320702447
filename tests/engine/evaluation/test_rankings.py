"""Measures of rankings, against hand-made ones."""

from __future__ import annotations

import numpy as np
import pytest

from engine.evaluation.rankings import (
    best_of_parts,
    clustered_standard_error,
    quality,
    ranks_of,
    spearman,
    top_agreement,
)


def test_ranks_put_the_wanted_one_last_among_equals() -> None:
    scores = np.array([[0.9, 0.5, 0.1], [0.2, 0.2, 0.1], [0.0, 0.5, 0.3]], np.float32)
    assert ranks_of(scores, [0, 0, 0]).tolist() == [1, 2, 3]


def test_scores_that_are_no_numbers_find_nothing() -> None:
    scores = np.full((3, 4), np.nan, np.float32)
    scores[1] = [0.5, np.nan, 0.1, np.nan]
    scores[2] = [0.1, 0.2, np.nan, 0.3]
    assert ranks_of(scores, [0, 0, 2]).tolist() == [4, 3, 4]


def test_quality_of_known_ranks() -> None:
    scores = np.eye(20, dtype=np.float32)
    scores[0, 1] = 2.0  # one query finds its document second
    found = quality(scores, range(20), range(20))
    assert found.recall_at_1 == pytest.approx(0.95)
    assert found.recall_at_10 == 1.0
    assert found.mrr == pytest.approx((19 + 0.5) / 20)
    assert found.ndcg_at_10 == pytest.approx((19 + 1 / np.log2(3)) / 20)


def test_the_error_of_queries_that_depend_on_each_other() -> None:
    """Ten documents, each asked about four times with the same result, are ten draws and not 40."""
    by_document = np.random.default_rng(0).random(10)
    documents = np.arange(10).repeat(4)
    expected = by_document.std(ddof=1) / np.sqrt(10)
    assert clustered_standard_error(by_document, range(10)) == pytest.approx(expected)
    found = clustered_standard_error(by_document.repeat(4), documents)
    assert found == pytest.approx(expected)
    order = np.random.default_rng(1).permutation(40)
    shuffled = clustered_standard_error(by_document.repeat(4)[order], documents[order])
    assert shuffled == pytest.approx(expected)
    assert clustered_standard_error(by_document, [3] * 10) is None


def test_a_document_is_as_good_as_its_best_part() -> None:
    queries = np.array([[1.0, 0.0]], np.float32)
    parts = np.array([[0.1, 0], [0.7, 0], [0.3, 0]], np.float32)
    assert best_of_parts(queries, parts, [0, 0, 1]).tolist() == [
        [pytest.approx(0.7), pytest.approx(0.3)]
    ]


def test_agreement_and_correlation_know_their_extremes() -> None:
    generator = np.random.default_rng(0)
    scores = generator.standard_normal((5, 30)).astype(np.float32)
    assert top_agreement(scores, scores * 2 + 1) == 1.0
    assert top_agreement(scores, -scores) == 0.0
    values = generator.standard_normal(50)
    assert spearman(values, np.exp(values)) == pytest.approx(1.0)
    assert spearman(values, -values) == pytest.approx(-1.0)


def test_equal_values_share_the_mean_of_their_ranks() -> None:
    rising = np.array([1.0, 2, 3, 4, 5])
    tied = np.array([1.0, 1, 1, 1, 2])
    assert spearman(tied, rising) == pytest.approx(
        np.corrcoef([2.5, 2.5, 2.5, 2.5, 5], rising)[0, 1]
    )
    assert spearman(tied, tied[::-1]) == pytest.approx(spearman(tied[::-1], tied))
    assert spearman(np.ones(5), rising) == spearman(rising, np.ones(5)) == 0.0
