"""Busy intervals: bounded in number, and nothing of the tiles' time lost."""

from __future__ import annotations

from itertools import pairwise

import pytest

from engine.scheduling.request import MAX_INTERVALS, BusyIntervals


@pytest.mark.parametrize(
    "num_tiles", [1, 2, MAX_INTERVALS, MAX_INTERVALS + 1, 2 * MAX_INTERVALS + 3, 20_001]
)
def test_any_number_of_tiles(num_tiles: int) -> None:
    intervals = BusyIntervals()
    for tile in range(num_tiles):
        intervals.add_tile(float(tile), 0.75)  # a quarter of the time goes to others
    found = intervals.as_tuple()
    assert 1 <= len(found) <= MAX_INTERVALS
    assert len(found) > min(num_tiles, MAX_INTERVALS) / 2
    assert sum(interval.tiles for interval in found) == num_tiles
    assert intervals.busy_s == 0.75 * num_tiles
    assert (found[0].began_at, found[-1].ended_at) == (0.0, num_tiles - 0.25)
    assert all(earlier.ended_at < later.began_at for earlier, later in pairwise(found))
    assert len({interval.tiles for interval in found[:-1]}) <= 1
    assert all(interval.busy_s == 0.75 * interval.tiles for interval in found)


def test_nothing_yet() -> None:
    assert BusyIntervals().as_tuple() == ()
    assert BusyIntervals().busy_s == 0
