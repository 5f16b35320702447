"""Stretches of tiles: bounded in number, and nothing of the tiles' time lost."""

from __future__ import annotations

from itertools import pairwise

import pytest

from engine.stretches import MOST, Stretches


@pytest.mark.parametrize("num_tiles", [1, 2, MOST, MOST + 1, 2 * MOST + 3, 20_001])
def test_any_number_of_tiles(num_tiles: int) -> None:
    stretches = Stretches()
    for tile in range(num_tiles):
        stretches.add_tile(float(tile), 0.75)  # a quarter of the time goes to others
    found = stretches.as_tuple()
    assert 1 <= len(found) <= MOST
    assert len(found) > min(num_tiles, MOST) / 2
    assert sum(stretch.tiles for stretch in found) == num_tiles
    assert stretches.busy_s == 0.75 * num_tiles
    assert (found[0].began_at, found[-1].ended_at) == (0.0, num_tiles - 0.25)
    assert all(earlier.ended_at < later.began_at for earlier, later in pairwise(found))
    assert len({stretch.tiles for stretch in found[:-1]}) <= 1
    assert all(stretch.busy_s == 0.75 * stretch.tiles for stretch in found)


def test_nothing_yet() -> None:
    assert Stretches().as_tuple() == ()
    assert Stretches().busy_s == 0
