"""How far a head looks: the mean distance E|i - j| between a token and those it attends to.

LLN: m_c(i) = sum_j kappa_cj |i - j| by two cumulative sums, then pi_i . m(i): exact and linear, as
Diag is in its blocks. Softmax needs whole rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from engine.diagnostics.base import Instrument, Reading
from engine.diagnostics.factors import Factors
from engine.diagnostics.statistics import error_floats, floats, mean_of
from engine.diagnostics.work import Work, shared

if TYPE_CHECKING:
    from engine.diagnostics.heads import Heads


def measure_head_scale(heads: Heads) -> Work[Reading]:
    distances = yield from mean_distances(heads)
    estimate = mean_of(distances, heads.num_tokens)
    sampled = f"sampled: {distances.shape[1]} rows, standard error"
    return Reading(
        values=floats(estimate.values),
        error=error_floats(estimate.error),
        method="exact" if estimate.error is None else sampled,
        unit=HEAD_SCALE.unit,
        cost={"softmax": f"{distances.shape[1]} N D", "lln": "N D"}.get(
            heads.view.attention, "N b D"
        ),
    )


@shared
def mean_distances(heads: Heads) -> Work[Tensor]:
    """sum_j P_ij |i - j| of every row [H, N]; of softmax, of the rows that were read."""
    match heads.view.attention:
        case "softmax":
            return (yield from heads.rows()).statistics.distance
        case "block_diagonal":
            return (yield from heads.block_rows()).distance
        case "lln":
            return lln_distances((yield from heads.factors()))
        case "lln_diag":
            lln = lln_distances((yield from heads.factors()))
            yield
            seen = yield from heads.seen_sums()
            return torch.lerp(seen.diag_distance, lln, heads.mix())


def lln_distances(factors: Factors) -> Tensor:
    kappa = factors.kappa.mT  # [H, N, D]
    positions = torch.arange(kappa.shape[1], dtype=kappa.dtype, device=kappa.device).unsqueeze(-1)
    mass, moment = kappa.cumsum(1), (kappa * positions).cumsum(1)
    # sum over j <= i of (i - j) kappa, less the same over j > i with its sign.
    by_channel = positions * (2 * mass - mass[:, -1:]) - (2 * moment - moment[:, -1:])
    distances: Tensor = torch.linalg.vecdot(factors.pi, by_channel)
    return distances


HEAD_SCALE = Instrument(
    name="head_scale",
    unit="tokens",
    description="mean distance between a token and the tokens it attends to",
    measure=measure_head_scale,
)
