"""How scores and log weights spread along a row: a head's temperature, and how log-normal it is.

Temperature. The LLN paper defines (eq. 5) tau = 1 / sigma, sigma^2 the variance of the scores
a_ij = q_i . k_j / sqrt(D). It takes sigma^2 = var(q) var(k) + C_cross over all elements; this is
exact only if both are isotropic, and it counts differences between rows, which do not change a
softmax. Beside are eq. 5 as printed, with C_cross = cov(q^2, k^2) - cov(q, k)^2 of the elements
themselves (`paper`), and with queries and keys less their means (`paper_centred`): the paper takes
Gaussians of mean 0, for which the two are one. Here sigma^2 is the mean over rows of the variance
within the row:

    sigma^2 = (1/N) sum_i Var_j(a_ij) = tr(Q^T Q Cov(K)) / (N D),

exact in O(N D^2), and unchanged by any shift of the keys. For softmax, and for kinds with an LLN
branch (which replaces the softmax of these scores), a row is the whole sequence; for block-diagonal
attention it is the keys that the block sees. A head whose scores do not vary, such as that of a
single token, has no finite temperature: it reads HIGHEST, and so does eq. 5 where its variance is
not positive. Quantiles over rows are of 1 / the standard deviation of each row's scores.

Log-normality. The value is the variance of log P over all entries that the rows see: the mean
variance within rows plus the variance of the rows' means. Beside, with each row standardised by its
own mean and spread: the mean skewness, the mean excess kurtosis (both 0 for a normal distribution)
and the goodness of fit, which is the mean over rows of the largest gap between the row's
distribution of log P and the normal's at its nine deciles. All rows are read, or a sample with its
standard error. Quantiles over rows are of the variance within each row.

Over a text of one block LLN+Diag is softmax, whose log P spreads widely. Over a longer one a row
has LLN's weights alone beyond its block, and these are nearly even, about 1 / N times LLN's share:
most of its log P is alike, so its variance falls and its distribution has another shape. Compare
texts of one block with each other, and longer ones with longer ones.

Also beside are predictions for Gaussian queries and keys, with s^2 the variance of the scores
within rows:

- softmax: the paper's is the variance of eq. 5; corrected, s^2 + s^4 / (2 D) over all entries,
  since the rows' normalisers vary too.
- LLN, with a = alpha^2 var(q) and b = beta^2 var(k): the paper's is eq. 32, whose terms ignore that
  all keys of a row share its query; corrected, log(1 + e^a (e^b - 1) / D) within rows.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from engine.diagnostics.head_group import HeadGroup
from engine.diagnostics.head_view import HeadMap, token_tiles
from engine.diagnostics.instrument import Instrument
from engine.diagnostics.lln_diag import channel_exponents
from engine.diagnostics.quantiles import quantiles_over_rows
from engine.diagnostics.readings import Quantity, Reading, error_floats, floats
from engine.diagnostics.sampling import Estimate, mean_of, row_weights
from engine.steps import Steps

HIGHEST = 1e6


def measure_temperature(heads: HeadGroup) -> Steps[Reading]:
    """tau = 1 / sigma of every head."""
    view = heads.view
    yield
    if view.attention == "block_diagonal":
        variance = yield from _variance_in_blocks(heads)
        rows, cost = "the keys its block sees", "N b D"
    else:
        grams = yield from heads.grams()
        variance = (grams.q * grams.k_covariance).sum((1, 2)).clamp_min(0.0) / view.num_tokens
        variance *= view.scale**2
        rows, cost = "the whole sequence", "N D^2"
    return Reading(
        values=floats(_temperature_of(variance)),
        error=None,
        method=f"exact: 1 / sqrt(mean variance of q.k / sqrt(D) over {rows})",
        unit=TEMPERATURE.unit,
        cost=cost,
        beside={
            name: Quantity(values=floats(_temperature_of(of_elements)), unit=TEMPERATURE.unit)
            for name, of_elements in _eq_5(view.q, view.k)._asdict().items()
        }
        | (yield from _quantiles(heads)),
    )


def _quantiles(heads: HeadGroup) -> Steps[dict[str, Quantity]]:
    if not heads.effort.quantiles:
        return {}
    if heads.view.attention == "block_diagonal":  # log P is the scores, less a constant of the row
        variances = (yield from heads.block_rows()).log_variance
    else:
        variances = yield from heads.score_variances()
    return quantiles_over_rows(heads, _temperature_of(variances), TEMPERATURE.unit)


def score_variance(q: Tensor, k: Tensor) -> Tensor:
    """(1/N) sum_i Var_j(q_i . k_j) of [N, H, D] in float64: [H]."""
    centred = k - k.mean(0)
    covariance = torch.einsum("jhc,jhd->hcd", centred, centred) / len(k)
    gram = torch.einsum("ihc,ihd->hcd", q, q) / len(q)
    return (gram * covariance).sum((1, 2)).clamp_min(0.0)


class _Eq5(NamedTuple):
    """var(q) var(k) + C_cross over all elements, C_cross = cov(q^2, k^2) - cov(q, k)^2: [H]."""

    paper: Tensor  # as printed; not positive for some queries and keys whose means are not 0
    paper_centred: Tensor  # of queries and keys less their means: the variance of their product


def _eq_5(q: Tensor, k: Tensor) -> _Eq5:
    count = q.shape[0] * q.shape[2]
    tiles = list(token_tiles(len(q)))
    means = [torch.stack([_flat(x, tile).sum(1) for tile in tiles]).sum(0) / count for x in (q, k)]
    sums = q.new_zeros(6, q.shape[1], dtype=torch.float64)
    for tile in tiles:
        a, b = (_flat(x, tile) - mean.unsqueeze(1) for x, mean in zip((q, k), means, strict=True))
        sums += _product_sums(a, b)
    ab, aa, bb, aab, abb, aabb = sums / count
    q_mean, k_mean = means
    # Cov(q^2, k^2) of q = mean + a and k = mean + b, in moments of a and b, whose means are 0.
    of_squares = aabb - aa * bb + 2 * (k_mean * aab + q_mean * abb + 2 * q_mean * k_mean * ab)
    # var(q) var(k) + cov(a^2, b^2) is the mean of a^2 b^2.
    return _Eq5(aa * bb + of_squares - ab.square(), (aabb - ab.square()).clamp_min(0.0))


def _product_sums(a: Tensor, b: Tensor) -> Tensor:
    """Sums of a b, a^2, b^2, a^2 b, a b^2 and a^2 b^2 over the elements [H, elements]: [6, H]."""
    products = a * b
    pairs = ((a, b), (a, a), (b, b), (a, products), (products, b), (products, products))
    return torch.stack([torch.linalg.vecdot(x, y) for x, y in pairs])


def _flat(x: Tensor, tile: slice) -> Tensor:
    """The elements of some tokens: [H, elements] in float64."""
    return x[tile].double().transpose(0, 1).flatten(1)


def _temperature_of(variance: Tensor) -> Tensor:
    return 1.0 / variance.clamp_min(0.0).sqrt().clamp_min(1.0 / HIGHEST)


def _variance_in_blocks(heads: HeadGroup) -> Steps[Tensor]:
    blocks = heads.blocks
    assert blocks is not None, "block-diagonal attention has blocks"
    q, k = heads.view.q.double() * heads.view.scale, heads.view.k.double()
    total = q.new_zeros(heads.num_heads)
    for block in range(blocks.count):
        rows = q[block * blocks.width : (block + 1) * blocks.width]
        total += len(rows) * score_variance(rows, k[blocks.visible_keys(block)])
        yield
    return total / heads.num_tokens


TEMPERATURE = Instrument(
    name="temperature",
    unit="dimensionless",
    description="1 / standard deviation of a row's scores; high is even, low is sharp. "
    "Beside: the paper's eq. 5 as printed, and with queries and keys less their means.",
    measure=measure_temperature,
)


def measure_lognormality(heads: HeadGroup) -> Steps[Reading]:
    if heads.view.attention == "block_diagonal":
        rows, cost = (yield from heads.block_rows()), "N b D"
    else:
        rows = (yield from heads.rows()).statistics
        cost = f"{len(rows.entropy[0])} N D"
    count, population = rows.entropy.shape[1], heads.num_tokens
    total = _total_variance(rows.log_mean, rows.log_variance, population)
    within = mean_of(rows.log_variance, population)
    if heads.view.attention == "softmax":  # log P is the scores, less a constant of the row
        within = Estimate((yield from heads.score_variances()).mean(1), None)
    beside = {
        "within_rows": _quantity(within, "nats^2"),
        "skewness": _quantity(mean_of(rows.skewness, population), "dimensionless"),
        "kurtosis": _quantity(mean_of(rows.kurtosis, population), "dimensionless"),
        "decile_gap": _quantity(
            mean_of(rows.decile_gap, population, limits=(0.0, 1.0)), "probability"
        ),
    }
    predictions = yield from _predictions(heads)
    for name, prediction in predictions.items():
        beside[name] = Quantity(values=floats(prediction), unit="nats^2")
    beside |= quantiles_over_rows(heads, rows.log_variance, LOGNORMALITY.unit)
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
    weights = row_weights(means.shape[1], population).to(means)
    centre = (means @ weights).unsqueeze(1)
    return mean_of(variances + (means - centre).square(), population, limits=(0.0, math.inf))


def _quantity(estimate: Estimate, unit: str) -> Quantity:
    return Quantity(values=floats(estimate.values), unit=unit, error=error_floats(estimate.error))


def _predictions(heads: HeadGroup) -> Steps[dict[str, Tensor]]:
    view = heads.view
    match view.attention:
        case "softmax":
            grams = yield from heads.grams()
            within = (grams.q * grams.k_covariance).sum((1, 2)) * view.scale**2 / view.num_tokens
            return {
                "paper_prediction": _eq_5(view.q, view.k).paper.clamp_min(0.0),
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
                "corrected_prediction": _log1p_excess(a, b, view.head_size),
            }
        case _:
            return {}


def _exponent_variance(rows: Tensor, head_map: HeadMap | None, scale: Tensor) -> Tensor:
    """Over all tokens and channels: the variance within tiles plus that between their means."""
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


def _log1p_excess(a: Tensor, b: Tensor, parts: int) -> Tensor:
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
