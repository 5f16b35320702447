"""The rows that are asked for, cut into tiles on the host: a program reads one tile of one head."""

from __future__ import annotations

import itertools
from typing import NamedTuple

import torch
from torch import Tensor


class RowTiles(NamedTuple):
    """Rows cut into tiles, each of one sequence."""

    sequence: Tensor  # int32 [tiles]
    rows: Tensor  # int32 [tiles, BM] positions in the sequence, -1 for none
    first: Tensor  # int32 [tiles] where the answers of a tile begin


def row_tiles(rows: Tensor, bounds: tuple[int, ...], size: int) -> RowTiles:
    """Rows cut into tiles that end with their sequence."""
    sequences, positions, firsts = [], [], []
    cuts = torch.searchsorted(rows, torch.tensor(bounds)).tolist()
    for sequence, (first, last) in enumerate(itertools.pairwise(cuts)):
        for at in range(first, last, size):
            some = rows[at : min(at + size, last)] - bounds[sequence]
            padding = some.new_full((size - len(some),), -1)
            sequences.append(sequence)
            positions.append(torch.cat([some, padding]))
            firsts.append(at)
    together = torch.stack(positions) if positions else torch.empty(0, size)
    return RowTiles(
        torch.tensor(sequences, dtype=torch.int32),
        together.to(torch.int32),
        torch.tensor(firsts, dtype=torch.int32),
    )
