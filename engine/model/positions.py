"""Positions in packed rows: learned and rotary, also beyond those that a model was trained on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from engine.checkpoint.block_size import LongBlock
from engine.model.weights import Rotary
from engine.types import PositionScheme


@dataclass(frozen=True)
class LearnedPositions:
    """A table of learned positions, extended to sequences longer than the table.

    A sequence that fits the table uses its rows. In a longer one, "tile" repeats the table,
    "interpolate" stretches it over the sequence, and "reset" restarts it in each block of the
    attention.
    """

    table: Tensor  # [P, W]
    scheme: PositionScheme = "tile"
    block_size: int = 0  # for "reset"
    long_block: LongBlock | None = None

    def __call__(self, positions: Tensor, lengths: Tensor | int) -> Tensor:
        """Rows [T, W] for positions [T] in sequences of these lengths, a number or [T]."""
        size = len(self.table)
        match self.scheme:
            case "tile":
                return F.embedding(positions % size, self.table)
            case "interpolate":
                return self._interpolated(positions, torch.as_tensor(lengths, device=self._device))
            case "reset":
                lengths = torch.as_tensor(lengths, device=self._device)
                inside = positions % self._block_of(lengths).clamp_max(size)
                return F.embedding(torch.where(lengths > size, inside, positions), self.table)

    def _block_of(self, lengths: Tensor) -> Tensor:
        """The block size of every token's sequence; see `block_of`."""
        usual = torch.full_like(lengths, self.block_size)
        long = self.long_block
        return usual if long is None else usual.where(lengths <= long.beyond, long.size)

    @property
    def _device(self) -> torch.device:
        return self.table.device

    def _interpolated(self, positions: Tensor, lengths: Tensor) -> Tensor:
        last_row = len(self.table) - 1
        # In float64: float32 cannot distinguish the tokens of a long document.
        stretch = torch.clamp(last_row / (lengths - 1).clamp_min(1).double(), max=1.0)
        place = positions.double() * stretch
        below = place.floor().long().clamp_max(last_row)
        above = (below + 1).clamp_max(last_row)
        share = (place - below).to(self.table.dtype).unsqueeze(-1)
        return torch.lerp(F.embedding(below, self.table), F.embedding(above, self.table), share)


def rotate(x: Tensor, positions: Tensor, rotary: Rotary) -> Tensor:
    """x [T, ..., D] with each pair of channels (c, c + D/2) rotated by its token's position."""
    half = x.shape[-1] // 2
    channels = torch.arange(half, device=x.device, dtype=torch.float32)
    angles = positions[:, None].float() * rotary.base ** (-channels / half)
    shape = (len(x), *(1 for _ in x.shape[1:-1]), half)
    cos, sin = angles.cos().view(shape), angles.sin().view(shape)
    first, second = x[..., :half].float(), x[..., half:].float()
    rotated = torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)
    return rotated.to(x.dtype)


def positions_in_sequences(bounds: Sequence[int], device: torch.device) -> Tensor:
    """Each packed row's index in its sequence: [T]."""
    if len(bounds) == 2:
        return torch.arange(bounds[1], device=device)
    starts, ends = np.array(bounds[:-1]), np.array(bounds[1:])
    positions = np.arange(bounds[-1]) - np.repeat(starts, ends - starts)
    return torch.from_numpy(positions).to(device)


def lengths_of_rows(bounds: Sequence[int], device: torch.device) -> Tensor:
    """The length of each packed row's sequence: [T]."""
    lengths = np.diff(np.array(bounds))
    return torch.from_numpy(np.repeat(lengths, lengths)).to(device)
