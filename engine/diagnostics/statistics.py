"""Numbers read off single attention rows, and means over rows with their standard errors."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import NormalDist
from typing import NamedTuple

import torch
from torch import Tensor

from engine.diagnostics.base import Floats

_FLAT_UNITS = 64
"""A spread of so many units of rounding, relative to the mean, is none."""

TENTHS = torch.arange(1, 10, dtype=torch.float64) / 10
DECILES = tuple(NormalDist().inv_cdf(share) for share in TENTHS.tolist())


class RowStatistics(NamedTuple):
    """Of single rows, each [H, rows]. Those of log P are over the keys that the row sees."""

    entropy: Tensor
    log_mean: Tensor
    log_variance: Tensor
    skewness: Tensor
    kurtosis: Tensor  # less 3, the normal's
    decile_gap: Tensor  # the largest gap to the normal at its deciles
    collision: Tensor  # sum of squares
    distance: Tensor  # mean |i - j|


class Estimate(NamedTuple):
    values: Tensor  # [H]
    error: Tensor | None  # [H] standard error, None where every row was read


def row_statistics(log_p: Tensor, distance: Tensor, seen: Tensor | None = None) -> RowStatistics:
    """log_p is [..., keys]; `seen` says which keys count, all by default."""
    p = log_p.exp()
    if seen is not None:
        log_p = log_p.masked_fill(~seen, 0.0)
    count = log_p.shape[-1] if seen is None else seen.sum(-1)
    log_mean = log_p.sum(-1) / count
    centred = log_p - log_mean.unsqueeze(-1)
    if seen is not None:
        centred.masked_fill_(~seen, 0.0)
    squares = centred.square()
    variance = squares.sum(-1) / count
    room = torch.empty_like(centred)
    third, fourth = (_dot(squares, other, room) / count for other in (centred, squares))
    rounding = _FLAT_UNITS * torch.finfo(log_p.dtype).eps
    is_flat = variance <= rounding**2 * (1 + log_mean.square())
    spread = variance.sqrt()
    gap = _decile_gap(centred, spread, count, seen, room)
    return RowStatistics(
        entropy=_dot(p, log_p, room).clamp_max(0.0).abs(),
        log_mean=log_mean,
        log_variance=variance,
        skewness=(third / spread**3).masked_fill(is_flat, 0.0),
        kurtosis=(fourth / variance.square() - 3).masked_fill(is_flat, 0.0),
        decile_gap=gap.masked_fill(is_flat, 0.0),
        collision=_dot(p, p, room),
        distance=_dot(p, distance.expand_as(p), room),
    )


def _dot(x: Tensor, y: Tensor, room: Tensor) -> Tensor:
    """Of rows. The products go into `room`: fresh memory for each would have to be cleared by the
    system first, which takes longer than they do."""
    return torch.mul(x, y, out=room).sum(-1)


def _decile_gap(
    centred: Tensor, spread: Tensor, count: int | Tensor, seen: Tensor | None, room: Tensor
) -> Tensor:
    """max over k of |share of the row below the normal's k-th decile - k / 10|."""
    below = room  # 0 or 1: sums of floats are the fast ones, and exact here
    counts = []
    for decile in DECILES:
        torch.lt(centred, (decile * spread).unsqueeze(-1), out=below)
        if seen is not None:
            below *= seen
        counts.append(below.sum(-1))
    shares = torch.stack(counts, dim=-1)
    shares /= count.unsqueeze(-1) if isinstance(count, Tensor) else count
    return (shares - TENTHS.to(shares)).abs().amax(-1)


def log_of(probabilities: Tensor) -> Tensor:
    """log p, held at the smallest number there is where p underflowed to 0."""
    return probabilities.clamp_min(torch.finfo(probabilities.dtype).tiny).log_()


def sum_p_log_p(p: Tensor) -> Tensor:
    """Of every row. The logarithm in float32 is off by 1e-7 of itself, and takes a fraction of the
    time."""
    logs = p.float().clamp_min(torch.finfo(torch.float32).tiny).log_().to(p)
    total: Tensor = torch.linalg.vecdot(p, logs)
    return total


def entropy_of_probabilities(probabilities: Tensor) -> Tensor:
    """-sum p log p of every row, where 0 log 0 is 0."""
    entropy: Tensor = torch.special.entr(probabilities).sum(-1)
    return entropy


def mean_of(
    per_row: Tensor, population: int, controls: Sequence[tuple[Tensor, Tensor]] = ()
) -> Estimate:
    """The mean over the rows of a text, of which `per_row` [H, rows] holds all or a sample drawn
    without replacement.

    Each control is something else known of every row: its values in the sample [H, rows] and its
    mean over all rows [H]. What they explain of `per_row` (linear regression) has no sampling
    error.
    """
    if per_row.shape[1] == population:
        return Estimate(per_row.mean(1), None)
    values = per_row.mean(1)
    residual = per_row - values.unsqueeze(1)
    leverage = torch.zeros_like(residual)
    if controls:
        known = torch.stack([sample for sample, _ in controls], dim=-1)  # [H, rows, c]
        beyond = torch.stack([mean for _, mean in controls], dim=-1) - known.mean(1)
        centred = known - known.mean(1, keepdim=True)
        inverse = torch.linalg.pinv(centred)  # [H, c, rows]
        slope = inverse @ residual.unsqueeze(-1)  # [H, c, 1]
        values = values + (beyond.unsqueeze(1) @ slope).flatten()
        residual = residual - (centred @ slope).squeeze(-1)
        leverage = (centred * inverse.mT).sum(-1)
    return Estimate(values, standard_error(residual, population, leverage))


def standard_error(residual: Tensor, population: int, leverage: Tensor | None = None) -> Tensor:
    """Of a mean over rows drawn without replacement, from the rows' deviations [H, rows].

    A row that pulled the fit towards itself (its leverage) deviates the more from a fit without it,
    and so it is counted, as the jackknife does: rows of attention are far from alike.
    """
    count = residual.shape[1]
    pull = torch.full_like(residual, 1 / count) if leverage is None else leverage + 1 / count
    without = residual / (1 - pull).clamp_min(0.5 / count)
    variance = without.square().sum(1) / max(count - 1, 1)
    factor = few_samples_factor(count) + skewness_term(without)
    return factor * (variance * (1 - count / population) / count).sqrt()


def skewness_term(deviations: Tensor) -> Tensor:
    """The same for a few rows far on one side: a sample without them knows neither the mean nor its
    error. Three errors to that side, the studentised mean of n draws of skewness g is off by
    g (2 * 3^2 + 1) / (6 sqrt(n)) (Cornish and Fisher), shared here among the three."""
    spread = deviations.square().mean(1).sqrt()
    skewness = (deviations / spread.unsqueeze(1)).pow(3).mean(1).abs().nan_to_num(0.0)
    term: Tensor = skewness * (19 / 18) / deviations.shape[1] ** 0.5
    return term


def few_samples_factor(count: int) -> float:
    """What widens a standard error estimated from few samples so that three of it hold as often as
    a normal's: Student's quantile over the normal's, expanded in the degrees of freedom."""
    free = max(count - 1, 1)
    return 1 + 2.5 / free + 5.75 / free**2


def floats(tensor: Tensor) -> Floats:
    """On the host, in float64."""
    array: Floats = tensor.double().cpu().numpy()
    return array


def error_floats(error: Tensor | None) -> Floats | None:
    return None if error is None else floats(error)
