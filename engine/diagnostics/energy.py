"""The energy tr(E E^T) of a head's scores E = Q K^T / sqrt(D), and its share of its bound.

tr(E E^T) = <Q^T Q, K^T K> / D: exact, in O(N D^2). It is at most |Q|_F^2 |K|_F^2 / D, and as large
only where all queries and keys lie along one line. With |W_Q|_F^2 = |W_K|_F^2 = D that is at most
D |X|_F^4, and D H |X|_F^4 for a layer of H heads.
"""

from __future__ import annotations

import torch
from torch import Tensor

from engine.diagnostics.head_group import HeadGroup
from engine.diagnostics.instrument import Instrument
from engine.diagnostics.readings import Quantity, Reading, floats
from engine.steps import Steps


def measure_energy(heads: HeadGroup) -> Steps[Reading]:
    grams = yield from heads.grams()
    energy = (grams.q * grams.k).sum((1, 2)) / heads.view.head_size
    bound = _trace(grams.q) * _trace(grams.k) / heads.view.head_size
    share = torch.where(bound > 0, energy / bound, 0.0)
    return Reading(
        values=floats(energy),
        error=None,
        method="exact: <Q^T Q, K^T K> / D",
        unit=ENERGY.unit,
        cost="N D^2",
        beside={
            "bound": Quantity(values=floats(bound), unit=ENERGY.unit),
            "share_of_bound": Quantity(values=floats(share), unit="dimensionless"),
        },
    )


def _trace(matrices: Tensor) -> Tensor:
    return matrices.diagonal(dim1=1, dim2=2).sum(1)


ENERGY = Instrument(
    name="energy",
    unit="score^2",
    description="sum of the squared scores. Beside: its bound |Q|^2 |K|^2 / D, and its share of "
    "that, 1 where all queries and keys lie along one line.",
    measure=measure_energy,
)
