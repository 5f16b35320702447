"""Which rows of a text are read, and means over all rows from those that were."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from engine.diagnostics.head_view import HeadView

_DEPENDENT = 1e-9
"""Controls are one direction if they differ by less, relative to their spread."""

_CONTRADICTS = 2.0
"""A fit this many of the plain mean's errors away from it contradicts it."""


class Estimate(NamedTuple):
    values: Tensor  # [H]
    error: Tensor | None  # [H] standard error, None where every row was read


def choose_rows(view: HeadView, count: int, seed: int) -> Tensor:
    """All rows, or so many drawn without replacement, the same for every head: ascending."""
    if count >= view.num_tokens:
        return torch.arange(view.num_tokens, device=view.q.device)
    generator = torch.Generator().manual_seed(seed)
    chosen = torch.randperm(view.num_tokens, generator=generator)[:count]
    return chosen.sort().values.to(view.q.device)


def mean_of(
    per_row: Tensor,
    population: int,
    controls: Sequence[tuple[Tensor, Tensor]] = (),
    limits: tuple[float, float] = (-math.inf, math.inf),
) -> Estimate:
    """The mean over all rows of a text, given `per_row` [H, rows] of all of them or of a sample
    drawn without replacement. It lies within the `limits`, which the caller knows to hold.

    A control is another quantity that is known of every row: its values in the sample [H, rows] and
    its mean over all rows [H]. The part of `per_row` that controls explain (by linear regression)
    has no sampling error. A regression weighs the rows so that the sample's controls have the known
    means. Where the sample hardly varies in a control, or lies far from its mean, these weights are
    large, and so is the stated error; there the plain mean is taken.
    """
    if per_row.shape[1] == population:
        return Estimate(per_row.mean(1).clamp(*limits), None)
    even = torch.full_like(per_row, 1 / per_row.shape[1])
    deviations = per_row - per_row.mean(1, keepdim=True)
    found = Estimate(per_row.mean(1), standard_error(deviations, population))
    if controls:
        known = torch.stack([sample for sample, _ in controls], dim=-1)  # [H, rows, c]
        beyond = torch.stack([mean for _, mean in controls], dim=-1) - known.mean(1)
        centred = known - known.mean(1, keepdim=True)
        scale = centred.norm(dim=1).clamp_min(torch.finfo(known.dtype).tiny)  # [H, c]
        centred = centred / scale.unsqueeze(1)
        inverse = torch.linalg.pinv(centred, rtol=_DEPENDENT)  # [H, c, rows]
        weights = even + ((beyond / scale).unsqueeze(1) @ inverse).squeeze(1)
        slope = inverse @ deviations.unsqueeze(-1)
        residual = deviations - (centred @ slope).squeeze(-1)
        leverage = (centred * inverse.mT).sum(-1)
        error = standard_error(residual, population, weights=weights, leverage=leverage)
        found = _better(found, Estimate((weights * per_row).sum(1), error))
    return within(found, limits)


def _better(plain: Estimate, fitted: Estimate) -> Estimate:
    """The one with the smaller stated error. A fit that contradicts the plain mean states an error
    that bridges part of the distance: one of them has missed rows."""
    assert plain.error is not None, "both are of a sample"
    assert fitted.error is not None, "both are of a sample"
    is_fitted = torch.isfinite(fitted.values) & (fitted.error <= plain.error)
    apart = (fitted.values - plain.values).abs()
    bridged = torch.where(apart > _CONTRADICTS * plain.error, apart / _CONTRADICTS, 0.0)
    return Estimate(
        torch.where(is_fitted, fitted.values, plain.values),
        torch.where(is_fitted, fitted.error.maximum(bridged), plain.error),
    )


def within(estimate: Estimate, limits: tuple[float, float]) -> Estimate:
    """The estimate moved into its mathematical range. The error keeps what it said, and covers the
    distance moved."""
    values = estimate.values.clamp(*limits)
    moved = (values - estimate.values).abs()
    return Estimate(values, None if estimate.error is None else estimate.error.maximum(moved))


def standard_error(
    residual: Tensor,
    population: int,
    *,
    weights: Tensor | None = None,
    leverage: Tensor | None = None,
) -> Tensor:
    """Of a weighted mean over rows drawn without replacement, from the rows' deviations [H, rows].

    As in the jackknife, a row counts with its deviation from a fit without it, which is larger the
    more it pulled the fit towards itself (its leverage): rows of attention differ widely.
    """
    count = residual.shape[1]
    pull = torch.full_like(residual, 1 / count) if leverage is None else leverage + 1 / count
    without = residual / (1 - pull).clamp_min(0.5 / count)
    if weights is not None:
        without = without * weights * count
    variance = without.square().sum(1) / max(count - 1, 1)
    factor = few_samples_factor(count) + skewness_term(without)
    return factor * (variance * (1 - count / population) / count).sqrt()


def few_samples_factor(count: int) -> float:
    """Widens a standard error estimated from few samples, so that the true value lies within three
    of it as often as for a normal distribution: Student's quantile over the normal's, expanded in
    the degrees of freedom."""
    free = max(count - 1, 1)
    return 1 + 2.5 / free + 5.75 / free**2


def skewness_term(deviations: Tensor) -> Tensor:
    """Widens a standard error where a few rows lie far on one side: a sample without them gets both
    the mean and its error wrong. Three errors to that side, the studentised mean of n draws of
    skewness g is off by g (2 * 3^2 + 1) / (6 sqrt(n)) (Cornish and Fisher); each of the three
    errors takes a third of it."""
    spread = deviations.square().mean(1).sqrt()
    skewness = (deviations / spread.unsqueeze(1)).pow(3).mean(1).abs().nan_to_num(0.0)
    term: Tensor = skewness * (19 / 18) / deviations.shape[1] ** 0.5
    return term
