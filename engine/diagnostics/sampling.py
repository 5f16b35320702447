"""Which rows of a text are read, and means over all rows from those that were."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from engine.diagnostics.head_view import HeadView


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
    per_row: Tensor, population: int, controls: Sequence[tuple[Tensor, Tensor]] = ()
) -> Estimate:
    """The mean over all rows of a text, given `per_row` [H, rows] of all of them or of a sample
    drawn without replacement.

    A control is another quantity that is known of every row: its values in the sample [H, rows] and
    its mean over all rows [H]. The part of `per_row` that controls explain (by linear regression)
    has no sampling error.
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

    As in the jackknife, a row counts with its deviation from a fit without it, which is larger the
    more it pulled the fit towards itself (its leverage): rows of attention differ widely.
    """
    count = residual.shape[1]
    pull = torch.full_like(residual, 1 / count) if leverage is None else leverage + 1 / count
    without = residual / (1 - pull).clamp_min(0.5 / count)
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
