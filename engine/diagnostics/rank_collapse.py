"""Rank collapse: how alike the states of a layer's tokens are, in the model and path by path.

Rank collapse. The value is |X - 1 x^T|_F / |X|_F of the states that the layer returns, x their
mean: 0 if all tokens are alike, 1 if their mean is 0. Beside: the same of the states it reads, and
both in the composite measure sqrt(|R|_1 |R|_inf) of the literature on rank collapse (which is not a
norm, as the triangle inequality does not hold, but bounds the spectral norm). Exact, linear.

Path lengths. A network of attention and skip connections is a sum over paths through heads. Without
feed-forward layers, norms and biases, X_l = X_{l-1} + sum_h P_h X_{l-1} W_h, with the P of the real
forward pass. Expanded, X_L is a sum over paths through k heads in total, which a dynamic programme
adds up by length:

    S_{l,k} = S_{l-1,k} + sum_h P_h S_{l-1,k-1} W_h.

The value is the share of X_L that is not common to all tokens, as above. Beside, for k = 0 .. l,
are |S_{l,k}|_F and |S_{l,k} - mean|_F / |S_{l,k}|_F: the longer a path, the more alike its tokens.
Exact sums, in the precision of the model; each layer costs l passes of attention.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from engine.diagnostics.instrument import LayerInstrument, LayerView
from engine.diagnostics.readings import Quantity, Reading, floats
from engine.steps import Steps

_ROWS_A_TILE = 1_024


class Shares(NamedTuple):
    """The share of states that is not common to all tokens; 0 if they vanish: [] each."""

    norm: Tensor  # |X|_F
    residual: Tensor  # |X - 1 x^T|_F / |X|_F
    composite: Tensor  # the same with sqrt(largest column sum x largest row sum) for the norm


def shares_of(states: Tensor) -> Steps[Shares]:
    """The shares of states [T, W]."""
    tiles = torch.split(states, _ROWS_A_TILE)
    # Tile by tile too: torch's mean in another type than that of the states takes ten times longer.
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
    """The norms of a matrix that is read some rows at a time."""

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


def _read_rank_collapse(layer: LayerView) -> Steps[Reading]:
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


RANK_COLLAPSE = LayerInstrument(
    name="rank_collapse",
    unit="dimensionless",
    description="share of the states a layer gives that is not common to all tokens; 0 is "
    "collapse. Beside: the same of the states it reads, and both in the composite measure.",
    start=lambda: _read_rank_collapse,
)


class PathLengths:
    """The sums S_{l,k} of one text, up to the layer read last."""

    def __init__(self) -> None:
        self._sums: list[Tensor] = []  # by k, [T, W] each

    def __call__(self, layer: LayerView) -> Steps[Reading]:
        if not self._sums:
            self._sums = [layer.before]
        known = self._sums
        longer = []
        for states in known:
            mixed = yield from layer.mix_tokens(states)
            longer.append(mixed)
        self._sums = [
            known[0],
            *(same + more for same, more in zip(known[1:], longer, strict=False)),
            longer[-1],
        ]
        yield
        whole = yield from shares_of(torch.stack(self._sums).sum(0))
        norms, residuals = [], []
        for states in self._sums:
            shares = yield from shares_of(states)
            norms.append(shares.norm)
            residuals.append(shares.residual)
        return Reading(
            values=floats(whole.residual),
            error=None,
            method="exact sums over paths, in the model's own precision",
            unit=PATH_LENGTHS.unit,
            cost="layers x attention",
            beside={
                "norms": Quantity(values=floats(torch.stack(norms)), unit="state"),
                "residuals": Quantity(values=floats(torch.stack(residuals)), unit="dimensionless"),
            },
        )


PATH_LENGTHS = LayerInstrument(
    name="path_lengths",
    unit="dimensionless",
    description="share not common to all tokens, of the network without feed-forward layers. "
    "Beside, by the number of heads that a path goes through: the norm of its sum, and that share.",
    start=PathLengths,
    needs_all_layers=True,
    max_tokens=8_192,
)
