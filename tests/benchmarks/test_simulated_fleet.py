"""The schedule of a bulk job on thousands of workers, simulated: slow ones, and some taken away."""

from __future__ import annotations

import pytest

from benchmarks.bulk.simulated_fleet import Fleet, scheduled_parts, simulate, skewed_tokens
from service.bulk.parts import PART_TOKENS

DOCUMENTS_EACH = 320


@pytest.mark.parametrize("num_workers", [1_000, pytest.param(4_000, marks=pytest.mark.slow)])
def test_parts_balanced_by_tokens_end_within_a_tenth_of_the_bound(num_workers: int) -> None:
    """One worker in twenty has half the speed, and each is taken away every 50 parts or so. Parts
    of equally many rows take much longer."""
    fleet = Fleet(
        num_workers=num_workers,
        slow_share=0.05,
        slow_speed=0.5,
        seconds_between_losses=50 * PART_TOKENS,
        seconds_away=2 * PART_TOKENS,
    )
    number = DOCUMENTS_EACH * num_workers
    tokens = skewed_tokens(number, usual=PART_TOKENS / 2, longest=5 * PART_TOKENS)
    found = simulate(scheduled_parts(tokens, num_workers), fleet)
    assert 1.0 <= found.over_bound < 1.1
    assert 0 < found.repeated_share < 0.03
    by_rows = [sum(tokens[at : at + 20]) for at in range(0, len(tokens), 20)]
    assert simulate(by_rows, fleet).over_bound > 1.3


def test_the_bound_is_what_a_schedule_without_waste_takes() -> None:
    """All speed for all work, or one worker for the largest part."""
    even = Fleet(num_workers=3)
    assert simulate([1, 1, 1], even) == pytest.approx((1.0, 1.0, 0.0))
    assert simulate([4, 1, 1], even) == pytest.approx((4.0, 4.0, 0.0))
    assert simulate([1, 1, 4], even).over_bound == pytest.approx(1.0)
    assert simulate([1] * 4, even).over_bound == pytest.approx(2 / (4 / 3))


def test_what_was_lost_is_done_again() -> None:
    lossy = Fleet(num_workers=50, seconds_between_losses=4, seconds_away=1)
    found = simulate([1.0] * 2_000, lossy, seed=3)
    assert found.repeated_share > 0.05
    assert found.makespan_s > 2_000 / 50 * (1 + found.repeated_share)
