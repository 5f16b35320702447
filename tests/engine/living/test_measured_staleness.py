"""What was measured of a model's staleness, and what is stated for models that were not."""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np
import pytest

from benchmarks.living.staleness import MEASURED, least_for
from engine.living.staleness import LEAST, measured_for


def test_a_model_that_was_not_measured_gets_twice_the_largest_factors() -> None:
    known = [measured_for(calibration) for calibration in json.loads(MEASURED.read_text())]
    assert any(one.least < LEAST for one in known)
    found = measured_for("0" * 64)
    assert found.least == LEAST
    assert found.factors.tolist() == (2 * np.max([one.factors for one in known], axis=0)).tolist()


@pytest.mark.parametrize(
    ("kept", "stated", "least"),
    [
        ([0.00005] * 100, 0.0, 0.0001),
        ([0.00005] * 99 + [0.9], 0.0, 0.0001),  # one in a hundred may be beyond it
        ([0.00005] * 98 + [0.00025] * 2, 0.0, 0.0003),
        ([0.9] * 100, 1.0, 0.0001),  # the factors say enough
    ],
)
def test_the_least_that_holds_for_all_but_one_in_a_hundred(
    kept: Sequence[float], stated: float, least: float
) -> None:
    rows = [{"corpus": "a", "kept": kept}, {"corpus": "b", "kept": [0.0] * 1000}]
    assert least_for(rows, np.array([stated, 0.0])) == least


def test_no_least_is_made_up() -> None:
    with pytest.raises(ValueError, match=r"more than 0\.01"):
        least_for([{"corpus": "a", "kept": [0.02]}], np.array([0.0]))
