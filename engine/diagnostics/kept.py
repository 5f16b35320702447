"""What some heads of a layer leave for those who compare them with all others, if it is small."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from torch import Tensor

from engine.diagnostics.diag_weights import DiagWeights
from engine.diagnostics.factors import Factors
from engine.diagnostics.head_scale import mean_distances
from engine.diagnostics.work import Work

if TYPE_CHECKING:
    from engine.diagnostics.heads import Heads


class Kept(NamedTuple):
    weights: DiagWeights | None
    factors: Factors | None
    distances: Tensor  # [H] mean, of the rows that are read


def left_by(heads: Heads) -> Work[Kept]:
    factors = (yield from heads.light_factors()) if heads.view.has_channels else None
    distances = yield from mean_distances(heads)
    return Kept(heads.weights, factors, distances.mean(1))


def bytes_left(heads: Heads) -> int:
    """Of one head."""
    view = heads.view
    of_blocks = 0 if heads.blocks is None else heads.blocks.head_bytes
    of_factors = 2 * view.num_tokens * view.head_size if view.has_channels else 0
    return of_blocks + of_factors * heads.dtype.itemsize
