"""Bootstrap intervals, resampled by documents."""

from __future__ import annotations

import numpy as np
import pytest

from engine.errors import InvalidInput
from engine.evaluation.bootstrap import Answers, interval, mean_of_means, minus, pooled


def answers(values: list[float], documents: list[int]) -> Answers:
    return Answers(np.array(values, np.float64), np.array(documents, np.int64))


def test_interval_of_a_known_case() -> None:
    values = np.random.default_rng(1).normal(0.3, 1.0, 400)
    found = interval(Answers(values, np.arange(400)))
    assert found is not None
    assert found.mean == pytest.approx(values.mean())
    half = 1.96 * values.std() / 20
    assert found.low == pytest.approx(values.mean() - half, abs=0.015)
    assert found.high == pytest.approx(values.mean() + half, abs=0.015)


def test_questions_of_one_document_are_drawn_together() -> None:
    values = np.random.default_rng(1).normal(0.0, 1.0, 40)
    once = interval(Answers(values, np.arange(40)))
    repeated = interval(Answers(np.repeat(values, 10), np.repeat(np.arange(40), 10)))
    assert once is not None
    assert repeated is not None
    assert repeated.mean == pytest.approx(once.mean)
    assert repeated.low == pytest.approx(once.low)
    assert repeated.high == pytest.approx(once.high)


def test_intervals_of_little() -> None:
    assert interval(answers([], [])) is None
    assert pooled([]) is None
    same = interval(answers([0.2] * 5, list(range(5))))
    assert same is not None
    assert same.low == pytest.approx(0.2)
    assert same.high == pytest.approx(0.2)


def test_one_document_is_not_certain() -> None:
    """It would be drawn each time, and leave an interval without width."""
    one = answers([0.0, 1.0], [3, 3])
    assert interval(one) is None
    others = answers([0.0, 1.0, 0.5], [0, 1, 2])
    assert pooled([one, others]) == interval(others)
    assert mean_of_means([one, answers([1.0], [0])]) == 0.75


def test_each_corpus_counts_alike() -> None:
    found = pooled([answers([1.0] * 90, list(range(90))), answers([0.0] * 10, list(range(10)))])
    assert found is not None
    assert (found.mean, found.low, found.high) == (0.5, 0.5, 0.5)


def test_only_answers_to_the_same_questions_are_compared() -> None:
    difference = minus(answers([1.0, 0.5], [0, 1]), answers([0.5, 0.5], [0, 1]))
    assert difference.values.tolist() == [0.5, 0.0]
    with pytest.raises(InvalidInput) as error:
        minus(answers([1.0, 0.5], [0, 1]), answers([1.0, 0.5], [0, 0]))
    assert error.value.code == "unpaired_answers"
    with pytest.raises(InvalidInput):
        answers([1.0], [0, 1])
