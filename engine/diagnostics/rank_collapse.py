"""Rank collapse: how far the states of a layer's tokens are from being all alike.

The value is |X - 1 x^T|_F / |X|_F of the states that the layer gives, x their mean: 0 where all
tokens are alike, 1 where their mean is 0. Beside: the same of the states it reads, and both with
the composite measure sqrt(|R|_1 |R|_inf) of rank collapse's literature (which is not a norm, as
the triangle inequality does not hold, but bounds the spectral norm).
"""

from __future__ import annotations

import torch
from torch import Tensor

from engine.diagnostics.base import Quantity, Reading
from engine.diagnostics.layers import LayerInstrument, LayerReader, LayerView
from engine.diagnostics.statistics import floats
from engine.diagnostics.work import Work


def residual_share(states: Tensor) -> Tensor:
    """|X - 1 x^T|_F / |X|_F of [T, W]; 0 for states that vanish: []."""
    states = states.double()
    norm = states.norm()
    residual = (states - states.mean(0)).norm()
    return torch.where(norm > 0, residual / norm, torch.zeros_like(norm))


def composite_share(states: Tensor) -> Tensor:
    """The same with sqrt(largest column sum x largest row sum) in place of the norm."""
    states = states.double()
    whole = _composite(states)
    return torch.where(
        whole > 0, _composite(states - states.mean(0)) / whole, torch.zeros_like(whole)
    )


def _composite(matrix: Tensor) -> Tensor:
    sizes = matrix.abs()
    return (sizes.sum(0).amax() * sizes.sum(1).amax()).sqrt()


def _read(layer: LayerView) -> Work[Reading]:
    yield
    after = residual_share(layer.after)
    yield
    beside = {
        "before": residual_share(layer.before),
        "composite": composite_share(layer.after),
        "composite_before": composite_share(layer.before),
    }
    return Reading(
        values=floats(after),
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
