"""How log-normal a head's attention is: the spread and shape of log P_ij.

The value is the variance of log P over all entries that the rows see: the mean variance within
rows plus the variance of the rows' means. Within rows, each standardised by its own mean and
spread, are read the mean skewness, the mean excess kurtosis (both 0 for a normal) and the goodness
of fit: the mean over rows of the largest gap between the row's distribution of log P and the
normal's at its nine deciles.

Predictions, for Gaussian queries and keys, with s^2 the variance of the scores within rows:

- softmax: the paper's is eq. 5's variance; corrected, s^2 + s^4 / (2 D) over all entries, since the
  rows' normalisers vary too.
- LLN, with a = alpha^2 var(q) and b = beta^2 var(k): the paper's is eq. 32, whose terms ignore that
  all keys of a row share its query; corrected, log(1 + e^a (e^b - 1) / D) within rows.
"""

from __future__ import annotations

import torch
from torch import Tensor

from engine.diagnostics.base import Instrument, Quantity, Reading
from engine.diagnostics.factors import channel_exponents, token_tiles
from engine.diagnostics.heads import Heads
from engine.diagnostics.statistics import (
    Estimate,
    error_floats,
    floats,
    mean_of,
    standard_error,
)
from engine.diagnostics.temperature import element_variance
from engine.diagnostics.view import HeadMap
from engine.diagnostics.work import Work


def measure_lognormality(heads: Heads) -> Work[Reading]:
    if heads.view.attention == "block_diagonal":
        rows, cost = (yield from heads.block_rows()), "N b D"
    else:
        rows = (yield from heads.rows()).statistics
        cost = f"{len(rows.entropy[0])} N D"
    count, population = rows.entropy.shape[1], heads.num_tokens
    total = _total_variance(rows.log_mean, rows.log_variance, population)
    within = mean_of(rows.log_variance, population)
    if heads.view.attention == "softmax":  # log P are the scores, less a number a row
        within = Estimate((yield from heads.score_variances()).mean(1), None)
    beside = {
        "within_rows": _beside(within, "nats^2"),
        "skewness": _beside(mean_of(rows.skewness, population), "dimensionless"),
        "kurtosis": _beside(mean_of(rows.kurtosis, population), "dimensionless"),
        "decile_gap": _beside(mean_of(rows.decile_gap, population), "probability"),
    }
    predictions = yield from _predictions(heads)
    for name, prediction in predictions.items():
        beside[name] = Quantity(values=floats(prediction), unit="nats^2")
    sampled = f"sampled: {count} rows, standard error"
    return Reading(
        values=floats(total.values),
        error=error_floats(total.error),
        method="exact: every row" if count == population else sampled,
        unit=LOGNORMALITY.unit,
        cost=cost,
        beside=beside,
    )


def _total_variance(means: Tensor, variances: Tensor, population: int) -> Estimate:
    centred = means - means.mean(1, keepdim=True)
    per_row = variances + centred.square()
    values = per_row.mean(1)
    if means.shape[1] == population:
        return Estimate(values, None)
    return Estimate(values, standard_error(per_row - values.unsqueeze(1), population))


def _beside(estimate: Estimate, unit: str) -> Quantity:
    return Quantity(values=floats(estimate.values), unit=unit, error=error_floats(estimate.error))


def _predictions(heads: Heads) -> Work[dict[str, Tensor]]:
    view = heads.view
    match view.attention:
        case "softmax":
            grams = yield from heads.grams()
            within = (grams.q * grams.k_covariance).sum((1, 2)) * view.scale**2 / view.num_tokens
            return {
                "paper_prediction": element_variance(view.q, view.k),
                "corrected_prediction": within + within.square() / (2 * view.head_size),
            }
        case "lln":
            assert view.alpha is not None, "checked by the view"
            assert view.beta is not None, "checked by the view"
            a = _exponent_variance(view.q, view.q_map, view.alpha)
            b = _exponent_variance(view.k, view.k_map, view.beta)
            return {
                "paper_prediction": _log1p_share(a + b, view.head_size)
                + _log1p_share(a + b, view.num_tokens),
                "corrected_prediction": _corrected(a, b, view.head_size),
            }
        case _:
            return {}


def _exponent_variance(rows: Tensor, head_map: HeadMap | None, scale: Tensor) -> Tensor:
    """Over all tokens and channels: the variances within tiles, and that between their means."""
    tiles = list(token_tiles(len(rows)))
    found = [
        torch.var_mean(channel_exponents(rows[tile], head_map, scale), dim=(1, 2), correction=0)
        for tile in tiles
    ]
    within, means = (torch.stack(parts, dim=1) for parts in zip(*found, strict=True))  # [H, tiles]
    shares = torch.tensor([(tile.stop - tile.start) / len(rows) for tile in tiles]).to(means)
    mean = (means @ shares).unsqueeze(1)
    variance: Tensor = (within + (means - mean).square()) @ shares
    return variance


def _log1p_share(variance: Tensor, parts: int) -> Tensor:
    """log(1 + (e^variance - 1) / parts), for any variance."""
    log_parts = torch.log(torch.tensor(float(parts), dtype=torch.float64))
    others = torch.log(torch.tensor(float(max(parts - 1, 0)), dtype=torch.float64))
    return torch.logaddexp(variance, others.to(variance)) - log_parts.to(variance)


def _corrected(a: Tensor, b: Tensor, parts: int) -> Tensor:
    """log(1 + e^a (e^b - 1) / parts)."""
    log_excess = a + torch.where(b > 1, b + torch.log(-torch.expm1(-b)), torch.log(torch.expm1(b)))
    log_parts = torch.log(torch.tensor(float(parts), dtype=torch.float64)).to(a)
    return torch.logaddexp(torch.zeros_like(a), log_excess - log_parts)


LOGNORMALITY = Instrument(
    name="lognormality",
    unit="nats^2",
    description="variance of log P over all entries. Beside: the mean within rows, skewness, "
    "excess kurtosis, gap to the normal at its deciles, the paper's and the corrected prediction.",
    measure=measure_lognormality,
)
