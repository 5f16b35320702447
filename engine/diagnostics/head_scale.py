"""How far a head looks: the mean distance E|i - j| between a token and those it attends to.

LLN: m_c(i) = sum_j kappa_cj |i - j| by two cumulative sums, then pi_i . m(i): exact and linear, as
Diag is in its blocks. Softmax needs whole rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from engine.diagnostics.base import Instrument, Reading
from engine.diagnostics.factors import Factors, token_tiles
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
            return (yield from lln_distances((yield from heads.factors())))
        case "lln_diag":
            lln = yield from lln_distances((yield from heads.factors()))
            seen = yield from heads.seen_sums()
            return torch.lerp(seen.diag_distance, lln, heads.mix())


def lln_distances(factors: Factors) -> Work[Tensor]:
    pi, kappa = factors
    positions = torch.arange(pi.shape[1], dtype=kappa.dtype, device=kappa.device).unsqueeze(-1)
    all_mass, all_moment = kappa.sum(-1).unsqueeze(1), (kappa @ positions).mT  # [H, 1, D]
    mass, moment = torch.zeros_like(all_mass), torch.zeros_like(all_moment)
    parts = []
    for tile in token_tiles(pi.shape[1]):
        weights, place = kappa[:, :, tile].mT, positions[tile]
        masses = mass + weights.cumsum(1)
        moments = moment + (weights * place).cumsum(1)
        # sum over j <= i of (i - j) kappa, less the same over j > i with its sign.
        by_channel = place * (2 * masses - all_mass) - (2 * moments - all_moment)
        parts.append(torch.linalg.vecdot(pi[:, tile], by_channel))
        mass, moment = masses[:, -1:], moments[:, -1:]
        yield
    return torch.cat(parts, dim=1)


HEAD_SCALE = Instrument(
    name="head_scale",
    unit="tokens",
    description="mean distance between a token and the tokens it attends to",
    measure=measure_head_scale,
)
