"""Which rows of a text are read, and means over all rows from those that were.

The rows of the first and the last token are always read. They are those of special tokens in most
models, and attend as no other row does: a sample of the others would know nothing of them. They
count as the two rows that they are; the rows that were drawn stand for all others. One is drawn
from each of as many short stretches of the text, so that no part of it goes unread, such as a last
block of few tokens.
"""

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


_FEWEST_WITH_ENDS = 8
"""Smaller samples are drawn from all rows, the first and the last included."""


class Estimate(NamedTuple):
    values: Tensor  # [H]
    error: Tensor | None  # [H] standard error, None where every row was read


def choose_rows(view: HeadView, count: int, seed: int) -> Tensor:
    """All rows, or this many, the same for every head: the first and the last, and between them one
    of each stretch. Ascending."""
    population, device = view.num_tokens, view.q.device
    if count >= population:
        return torch.arange(population, device=device)
    generator = torch.Generator().manual_seed(seed)
    first, last = ends_of(count, population)
    num_drawn, others = count - first - last, population - first - last
    sizes = torch.full((num_drawn,), others // num_drawn)
    longer = torch.randperm(num_drawn, generator=generator)[: others % num_drawn]
    sizes[longer] += 1
    within_stretch = (torch.rand(num_drawn, generator=generator) * sizes).long().minimum(sizes - 1)
    drawn = first + sizes.cumsum(0) - sizes + within_stretch
    ends = [torch.tensor([0][:first]), drawn, torch.tensor([population - 1][:last])]
    return torch.cat(ends).long().to(device)


def ends_of(count: int, population: int) -> tuple[int, int]:
    """How many rows at the beginning and at the end of a sample were not drawn but chosen."""
    return (1, 1) if _FEWEST_WITH_ENDS <= count < population else (0, 0)


def row_weights(count: int, population: int) -> Tensor:
    """How much each row that was read counts in a mean over all rows: [rows]."""
    first, last = ends_of(count, population)
    drawn = count - first - last
    weights = torch.full((count,), (population - first - last) / (population * drawn))
    weights = weights.double()
    weights[:first] = weights[count - last :] = 1 / population
    return weights


def mean_of(
    per_row: Tensor,
    population: int,
    controls: Sequence[tuple[Tensor, Tensor]] = (),
    limits: tuple[float, float] = (-math.inf, math.inf),
    ends: tuple[int, int] | None = None,
) -> Estimate:
    """The mean over all rows of a text, given `per_row` [H, rows] of all of them or of a sample of
    `choose_rows`. It lies within the `limits`, which the caller knows to hold. `ends` is how many
    rows at both ends of a part of such a sample were chosen.

    A control is another quantity that is known of every row: its values in the sample [H, rows] and
    its mean over all rows [H]. The part of `per_row` that controls explain (by linear regression)
    has no sampling error. A regression weighs the rows so that the sample's controls have the known
    means. Where the sample hardly varies in a control, or lies far from its mean, these weights are
    large, and so is the stated error; there the plain mean is taken.
    """
    count = per_row.shape[1]
    if count == population:
        return Estimate(per_row.mean(1).clamp(*limits), None)
    first, last = ends_of(count, population) if ends is None else ends
    if first + last == 0:
        return within(_mean_of_drawn(per_row, population, controls, limits), limits)
    others = population - first - last
    drawn = slice(first, count - last)
    of_others = [
        (sample[:, drawn], (mean * population - _sum_of_ends(sample, first, last)) / others)
        for sample, mean in controls
    ]
    found = _mean_of_drawn(per_row[:, drawn], others, of_others, limits)
    assert found.error is not None, "it is of a sample"
    total = _sum_of_ends(per_row, first, last) + others * found.values
    return within(Estimate(total / population, found.error * others / population), limits)


def _sum_of_ends(per_row: Tensor, first: int, last: int) -> Tensor:
    count = per_row.shape[1]
    return per_row[:, :first].sum(1) + per_row[:, count - last :].sum(1)


def _mean_of_drawn(
    per_row: Tensor,
    population: int,
    controls: Sequence[tuple[Tensor, Tensor]],
    limits: tuple[float, float],
) -> Estimate:
    """From rows that were all drawn."""
    even = torch.full_like(per_row, 1 / per_row.shape[1])
    deviations = per_row - per_row.mean(1, keepdim=True)
    found = Estimate(per_row.mean(1), standard_error(deviations, population))
    if _can_fit(per_row.shape[1], len(controls)):
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
        error = standard_error(
            *(residual, population), weights=weights, leverage=leverage, num_controls=len(controls)
        )
        found = _better(found, Estimate((weights * per_row).sum(1), error), limits)
    return found


def _can_fit(count: int, num_controls: int) -> bool:
    """Whether a sample has more rows than a fit of its mean and its controls has numbers. Otherwise
    the fit meets every row, and nothing is left to tell its error."""
    return 0 < num_controls < count - 1


def _better(plain: Estimate, fitted: Estimate, limits: tuple[float, float]) -> Estimate:
    """The one with the smaller stated error. If the two contradict each other, the sample has
    missed rows that the controls know of, and the error bridges part of the distance. A fit beyond
    limits that are not known to be finite may be anywhere; it contradicts nothing."""
    assert plain.error is not None, "both are of a sample"
    assert fitted.error is not None, "both are of a sample"
    is_fitted = torch.isfinite(fitted.values) & (fitted.error <= plain.error)
    apart = (fitted.values.clamp(*limits) - plain.values).abs().nan_to_num(nan=0.0)
    contradicts = apart > _CONTRADICTS * plain.error
    if not all(map(math.isfinite, limits)):
        contradicts &= is_fitted
    contradicts &= apart > fitted.error.nan_to_num(nan=math.inf)
    bridged = torch.where(contradicts, apart / _CONTRADICTS, 0.0)
    chosen = torch.where(is_fitted, fitted.error, plain.error)
    return Estimate(torch.where(is_fitted, fitted.values, plain.values), chosen.maximum(bridged))


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
    num_controls: int = 0,
) -> Tensor:
    """The standard error of a weighted mean over rows drawn without replacement, from the rows'
    deviations [H, rows]: from their mean, or from a fit of controls besides.

    As in the jackknife, a row counts with its deviation from a fit without it, which is larger the
    more it pulled the fit towards itself (its leverage): rows of attention differ widely.
    """
    count = residual.shape[1]
    pull = torch.full_like(residual, 1 / count) if leverage is None else leverage + 1 / count
    without = residual / (1 - pull).clamp_min(0.5 / count)
    if weights is not None:
        without = without * weights * count
    variance = without.square().sum(1) / max(count - 1, 1)
    factor = few_samples_factor(count - num_controls) + skewness_term(without)
    return factor * (variance * (1 - count / population) / count).sqrt()


def few_samples_factor(count: int) -> float:
    """Widens a standard error estimated from few samples, so that the true value lies within three
    of it as often as for a normal distribution: Student's quantile over the normal's, expanded in
    the degrees of freedom."""
    free = max(count - 1, 1)
    return 1 + 2.5 / free + 5.75 / free**2


def few_rows_factor(squares: Tensor) -> Tensor:
    """Where a few rows have most of the sum, an error is estimated from those few: [H]."""
    effective = squares.sum(1).square() / squares.square().sum(1).clamp_min(1e-300)
    factors = [few_samples_factor(max(int(count), 2)) for count in effective.tolist()]
    return squares.new_tensor(factors)


def skewness_term(deviations: Tensor) -> Tensor:
    """Widens a standard error where a few rows lie far on one side: a sample without them gets both
    the mean and its error wrong. Three errors to that side, the studentised mean of n draws of
    skewness g is off by g (2 * 3^2 + 1) / (6 sqrt(n)) (Cornish and Fisher); each of the three
    errors takes a third of it."""
    spread = deviations.square().mean(1).sqrt()
    skewness = (deviations / spread.unsqueeze(1)).pow(3).mean(1).abs().nan_to_num(0.0)
    term: Tensor = skewness * (19 / 18) / deviations.shape[1] ** 0.5
    return term
