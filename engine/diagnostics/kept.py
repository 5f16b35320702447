"""What some heads of a layer leave for those who compare them with all others, if it is small."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from torch import Tensor

from engine.diagnostics.base import Effort
from engine.diagnostics.blocks import Blocks
from engine.diagnostics.diag_weights import room_for
from engine.diagnostics.factors import Factors
from engine.diagnostics.head_scale import mean_distances
from engine.diagnostics.view import HeadView
from engine.diagnostics.work import Work

if TYPE_CHECKING:
    from engine.diagnostics.heads import Heads


class Kept(NamedTuple):
    """Beside Diag's weights, which are in the layer's room."""

    factors: Factors | None
    distances: Tensor  # [H] mean, of the rows that are read


class LayerRoom:
    """Where the heads of a layer put Diag's weights, if all they leave fits so many bytes.

    The layers of a model use it one after the other: memory that was never written to before costs
    more than what is written to it.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self.is_large_enough = False
        self.weights: Tensor | None = None

    def open_for(self, view: HeadView, effort: Effort) -> None:
        """Make room for a layer; what was in it before is gone."""
        dtype = effort.dtype_of(view.num_tokens)
        blocks = Blocks(view, dtype) if view.has_blocks else None
        of_factors = 2 * view.q.numel() * dtype.itemsize if view.has_channels else 0
        of_blocks = 0 if blocks is None else blocks.num_bytes
        self.is_large_enough = of_factors + of_blocks <= self._max_bytes
        if blocks is None or not self.is_large_enough:
            self.weights = None
        elif self.weights is None or not _has_place_for(self.weights, blocks):
            self.weights = room_for(blocks, self._max_bytes)

    def of(self, heads: Sequence[int]) -> Tensor | None:
        """The part of these heads, which follow each other."""
        return None if self.weights is None else self.weights[heads[0] : heads[-1] + 1]


def _has_place_for(room: Tensor, blocks: Blocks) -> bool:
    return room.shape == blocks.shape and room.dtype == blocks.dtype


def left_by(heads: Heads) -> Work[Kept]:
    for _ in heads.diag_tiles() if heads.blocks is not None else ():
        yield  # all of Diag's weights are in the room then
    factors = (yield from heads.light_factors()) if heads.view.has_channels else None
    distances = yield from mean_distances(heads)
    return Kept(factors, distances.mean(1))
