"""Path lengths: a network of attention and skip connections as a sum over paths through heads.

Without feed-forward layers, norms and biases, X_l = X_{l-1} + sum_h P_h X_{l-1} W_h, with the P of
the real forward pass. Expanded, X_L is a sum over paths that pass through k heads in all, which a
dynamic programme adds up by length:

    S_{l,k} = S_{l-1,k} + sum_h P_h S_{l-1,k-1} W_h.

Beside are read |S_{l,k}|_F and |S_{l,k} - mean|_F / |S_{l,k}|_F for k = 0 .. l: the longer a path,
the more alike its tokens. The value is the residual share of their sum, the network without
feed-forward layers.
"""

from __future__ import annotations

import torch
from torch import Tensor

from engine.diagnostics.base import Quantity, Reading
from engine.diagnostics.layers import LayerInstrument, LayerReader, LayerView
from engine.diagnostics.rank_collapse import shares_of
from engine.diagnostics.statistics import floats
from engine.diagnostics.work import Work


class PathLengths:
    """The sums S_{l,k} of one text, as far as its layers have been read."""

    def __init__(self) -> None:
        self._sums: list[Tensor] = []  # by k, [T, W] each

    def __call__(self, layer: LayerView) -> Work[Reading]:
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


def _start() -> LayerReader:
    return PathLengths()


PATH_LENGTHS = LayerInstrument(
    name="path_lengths",
    unit="dimensionless",
    description="share not common to all tokens, of the network without feed-forward layers. "
    "Beside, by the number of heads that a path goes through: the norm of its sum, and that share.",
    start=_start,
    needs_all_layers=True,
    max_tokens=8_192,
)
