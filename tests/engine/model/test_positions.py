"""Positions beyond a model's table, and rotary positions."""

from __future__ import annotations

import pytest
import torch

from engine.checkpoint.block_size import LongBlock
from engine.model.positions import LearnedPositions, lengths_of_rows, positions_in_sequences, rotate
from engine.model.weights import Rotary
from engine.types import PositionScheme

TABLE = torch.arange(8, dtype=torch.float32).unsqueeze(1)  # row p holds the number p


def rows(
    scheme: PositionScheme, lengths: list[int], long_block: LongBlock | None = None
) -> list[float]:
    bounds = [0]
    for length in lengths:
        bounds.append(bounds[-1] + length)
    device = torch.device("cpu")
    embed = LearnedPositions(TABLE, scheme, 4, long_block)
    return (
        embed(positions_in_sequences(bounds, device), lengths_of_rows(bounds, device))
        .flatten()
        .tolist()
    )


@pytest.mark.parametrize("scheme", ["tile", "interpolate", "reset"])
def test_a_sequence_within_the_table_uses_its_rows(scheme: PositionScheme) -> None:
    assert rows(scheme, [8, 0, 1, 3]) == [0, 1, 2, 3, 4, 5, 6, 7, 0, 0, 1, 2]


def test_tile_repeats_the_table() -> None:
    assert rows("tile", [10]) == [0, 1, 2, 3, 4, 5, 6, 7, 0, 1]


def test_reset_restarts_the_table_in_each_block() -> None:
    assert rows("reset", [2, 10]) == [0, 1, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1]


def test_reset_follows_the_blocks_of_long_sequences() -> None:
    beyond_nine = LongBlock(beyond=9, size=3)
    assert rows("reset", [9, 10], beyond_nine) == [0, 1, 2, 3] * 2 + [0] + [0, 1, 2] * 3 + [0]


def test_interpolate_stretches_the_table_over_the_sequence() -> None:
    assert rows("interpolate", [15]) == pytest.approx([p / 2 for p in range(15)])


def test_interpolate_distinguishes_neighbours_in_a_long_document() -> None:
    length = 1 << 21
    place = torch.tensor([length - 2, length - 1])
    below, last = LearnedPositions(TABLE.double(), "interpolate")(place, length).flatten().tolist()
    assert below < last == 7.0


def test_rotated_scores_depend_on_the_distance_only() -> None:
    generator = torch.Generator().manual_seed(0)
    q, k = torch.randn(2, 1, 2, 16, generator=generator, dtype=torch.float64).unbind()
    rotary = Rotary(base=100.0)

    def score(at_q: int, at_k: int) -> torch.Tensor:
        turned_q = rotate(q, torch.tensor([at_q]), rotary)
        turned_k = rotate(k, torch.tensor([at_k]), rotary)
        return (turned_q * turned_k).sum(-1)

    assert torch.allclose(score(5, 2), score(105, 102), atol=1e-4)
    assert not torch.allclose(score(5, 2), score(5, 4), atol=1e-2)
