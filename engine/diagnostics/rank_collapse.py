"""Rank collapse: how far the states of a layer's tokens are from being all alike.

The value is |X - 1 x^T|_F / |X|_F of the states that the layer gives, x their mean: 0 where all
tokens are alike, 1 where their mean is 0. Beside: the same of the states it reads, and both with
the composite measure sqrt(|R|_1 |R|_inf) of rank collapse's literature (which is not a norm, as
the triangle inequality does not hold, but bounds the spectral norm).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from engine.diagnostics.base import Quantity, Reading
from engine.diagnostics.layers import LayerInstrument, LayerReader, LayerView
from engine.diagnostics.statistics import floats
from engine.diagnostics.work import Work

_ROWS_A_TILE = 1_024


class Shares(NamedTuple):
    """What states have that is not common to all tokens, over all that they have; 0 for states
    that vanish: [] each."""

    norm: Tensor  # |X|_F
    residual: Tensor  # |X - 1 x^T|_F / |X|_F
    composite: Tensor  # the same with sqrt(largest column sum x largest row sum) for the norm


def shares_of(states: Tensor) -> Work[Shares]:
    """Of states [T, W]."""
    tiles = torch.split(states, _ROWS_A_TILE)
    # Tile by tile too: torch's own mean in another type than the states' takes ten times as long.
    mean = torch.stack([rows.double().sum(0) for rows in tiles]).sum(0) / len(states)
    yield
    whole, rest = _Sizes(states.shape[1], states.device), _Sizes(states.shape[1], states.device)
    for rows in tiles:
        rows = rows.double()
        whole.add(rows)
        rest.add(rows.sub_(mean))
        yield
    return Shares(
        norm=whole.norm,
        residual=_share(rest.norm, whole.norm),
        composite=_share(rest.composite, whole.composite),
    )


class _Sizes:
    """Of a matrix that comes some rows at a time."""

    def __init__(self, width: int, device: torch.device) -> None:
        self._squares, self._row = (
            torch.zeros((), dtype=torch.float64, device=device) for _ in range(2)
        )
        self._columns = torch.zeros(width, dtype=torch.float64, device=device)

    def add(self, rows: Tensor) -> None:
        self._squares += rows.square().sum()
        sizes = rows.abs()
        self._columns += sizes.sum(0)
        self._row = self._row.maximum(sizes.sum(1).amax())

    @property
    def norm(self) -> Tensor:
        return self._squares.sqrt()

    @property
    def composite(self) -> Tensor:
        return (self._columns.amax() * self._row).sqrt()


def _share(part: Tensor, whole: Tensor) -> Tensor:
    return torch.where(whole > 0, part / whole, torch.zeros_like(whole))


def _read(layer: LayerView) -> Work[Reading]:
    after = yield from shares_of(layer.after)
    before = yield from shares_of(layer.before)
    beside = {
        "before": before.residual,
        "composite": after.composite,
        "composite_before": before.composite,
    }
    return Reading(
        values=floats(after.residual),
        error=None,
        method="exact: |X - mean| / |X|",
        unit=RANK_COLLAPSE.unit,
        cost="N W",
        beside={
            name: Quantity(values=floats(value), unit=RANK_COLLAPSE.unit)
            for name, value in beside.items()
        },
    )


def _start() -> LayerReader:
    return _read


RANK_COLLAPSE = LayerInstrument(
    name="rank_collapse",
    unit="dimensionless",
    description="share of the states a layer gives that is not common to all tokens; 0 is "
    "collapse. Beside: the same of the states it reads, and both in the composite measure.",
    start=_start,
)
