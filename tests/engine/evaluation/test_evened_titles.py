"""Titles that weigh the same in every passage."""

from __future__ import annotations

import numpy as np
import pytest

from engine.evaluation.evened_titles import LEAST_REST, with_title
from engine.types import Vector


def unit(vectors: Vector) -> Vector:
    found: Vector = vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)
    return found


@pytest.fixture
def title() -> Vector:
    found: Vector = np.random.default_rng(0).normal(size=384).astype(np.float32)
    return found


def passages(title: Vector, along: list[float]) -> Vector:
    """Vectors of several lengths with these cosines to the title."""
    drawn = np.random.default_rng(1).normal(size=(len(along), len(title))).astype(np.float32)
    direction = unit(title)
    across = unit(drawn - (drawn @ direction)[:, None] * direction)
    cosines = np.array(along)[:, None]
    lengths = np.arange(1, len(along) + 1)[:, None]
    mixed = lengths * (cosines * direction + np.sqrt(1 - cosines**2) * across)
    found: Vector = mixed.astype(np.float32)
    return found


@pytest.mark.parametrize("weight", [0.5, 1.0, 10.0])
def test_all_passages_are_as_near_to_their_title(title: Vector, weight: float) -> None:
    before = passages(title, [-0.3, 0.0, 0.4, 0.7])
    after = with_title(before, title, weight)
    cosines = unit(after) @ unit(title)
    np.testing.assert_allclose(cosines, weight / np.sqrt(1 + weight**2), atol=1e-6)
    lengths = np.linalg.norm(after, axis=1)
    np.testing.assert_allclose(lengths, np.linalg.norm(before, axis=1), rtol=1e-5)


def test_what_passages_say_besides_their_title_stays(title: Vector) -> None:
    before = passages(title, [0.0, 0.2, 0.6])
    after = with_title(before, title, 0.75)
    direction = unit(title)
    across_before, across_after = (
        unit(one - (one @ direction)[:, None] * direction) for one in (before, after)
    )
    np.testing.assert_allclose(across_after, across_before, atol=1e-6)


def test_a_passage_that_is_the_title_stays_the_title(title: Vector) -> None:
    noise = np.random.default_rng(2).normal(size=384).astype(np.float32)
    close = (title + 1e-6 * noise)[None]
    for before in (title[None], close):
        [after] = unit(with_title(before, title, 0.75))
        assert after @ unit(title) > 0.999999
    almost = passages(title, [np.sqrt(1 - LEAST_REST**2) + 0.05])
    assert unit(with_title(almost, title, 0.75)) @ unit(title) > 0.75 / np.sqrt(1 + 0.75**2)


def test_rows_do_not_depend_on_each_other(title: Vector) -> None:
    together = passages(title, [0.1 * place for place in range(-3, 10)])
    whole = with_title(together, title, 0.75)
    for place, row in enumerate(together):
        np.testing.assert_array_equal(with_title(row[None], title, 0.75)[0], whole[place])


def test_nothing_is_turned_by_no_weight_or_towards_nothing(title: Vector) -> None:
    some = passages(title, [0.1, 0.5])
    np.testing.assert_array_equal(with_title(some, title, 0.0), some)
    np.testing.assert_array_equal(with_title(np.zeros_like(some), title, 1.0), 0)
    turned = with_title(some, np.zeros_like(title), 1.0)
    np.testing.assert_allclose(unit(turned), unit(some), atol=1e-6)
