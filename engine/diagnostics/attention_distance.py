"""How far a head looks: the mean distance E|i - j| between a token and those it attends to.

- LLN: m_c(i) = sum_j kappa_cj |i - j| by two cumulative sums, then pi_i . m(i): exact, linear.
- Diag: within its blocks: exact, linear.
- Softmax: from whole rows, all of them or a sample.
"""

from __future__ import annotations

import torch
from torch import Tensor

from engine.diagnostics.head_group import HeadGroup
from engine.diagnostics.head_view import token_tiles
from engine.diagnostics.instrument import Instrument
from engine.diagnostics.lln_diag import Factors
from engine.diagnostics.quantiles import quantiles_over_rows
from engine.diagnostics.readings import Reading, error_floats, floats
from engine.diagnostics.sampling import mean_of
from engine.steps import Steps, computed_once


def measure_head_scale(heads: HeadGroup) -> Steps[Reading]:
    distances = yield from mean_distances(heads)
    limits = 0.0, float(heads.num_tokens - 1)
    estimate = mean_of(distances, heads.num_tokens, limits=limits)
    sampled = f"sampled: {distances.shape[1]} rows, standard error"
    return Reading(
        values=floats(estimate.values),
        error=error_floats(estimate.error),
        method="exact" if estimate.error is None else sampled,
        unit=HEAD_SCALE.unit,
        cost={"softmax": f"{distances.shape[1]} N D", "lln": "N D"}.get(
            heads.view.attention, "N b D"
        ),
        beside=quantiles_over_rows(heads, distances, HEAD_SCALE.unit),
    )


@computed_once
def mean_distances(heads: HeadGroup) -> Steps[Tensor]:
    """sum_j P_ij |i - j| of every row [H, N]; of softmax, of the rows that are read."""
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
            return torch.lerp(seen.diag_distance, lln, heads.view.lln_share())


def lln_distances(factors: Factors) -> Steps[Tensor]:
    pi, kappa = factors
    positions = torch.arange(pi.shape[1], dtype=kappa.dtype, device=kappa.device).unsqueeze(-1)
    all_mass, all_moment = kappa.sum(-1).unsqueeze(1), (kappa @ positions).mT  # [H, 1, D]
    mass, moment = torch.zeros_like(all_mass), torch.zeros_like(all_moment)
    parts = []
    for tile in token_tiles(pi.shape[1]):
        weights, place = kappa[:, :, tile].mT, positions[tile]
        masses = mass + weights.cumsum(1)
        moments = moment + (weights * place).cumsum(1)
        # The sum over j <= i of (i - j) kappa, less the sum over j > i of it.
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
