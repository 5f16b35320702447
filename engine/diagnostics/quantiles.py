"""How a quantity spreads over the rows of a head: what a share of its rows stays below.

A mean hides whether all rows are alike or a few are extreme. Where every row's value is known, the
quantiles are those of the text. Where only a sample was read, they are those of the sample and have
an error.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from engine.diagnostics.head_group import HeadGroup
from engine.diagnostics.readings import Quantity, error_floats, floats
from engine.diagnostics.sampling import Estimate

NAME = "quantiles"


def quantiles_over_rows(heads: HeadGroup, per_row: Tensor, unit: str) -> dict[str, Quantity]:
    """Beside an instrument's value, if the caller asked for them. `per_row` [H, rows] has all rows
    of the text, or those of the sample."""
    if not heads.effort.quantiles:
        return {}
    return {NAME: quantiles_quantity(per_row, heads.effort.quantiles, heads.num_tokens, unit)}


def quantiles_quantity(
    per_row: Tensor, shares: Sequence[float], population: int, unit: str
) -> Quantity:
    found = row_quantiles(per_row, shares, population)
    return Quantity(values=floats(found.values), unit=unit, error=error_floats(found.error))


def row_quantiles(per_row: Tensor, shares: Sequence[float], population: int) -> Estimate:
    """Quantiles over the rows, [H, shares]. In a sample, how many of its rows lie below a quantile
    of the text is binomial: three of its standard deviations to both sides lie three stated errors
    away."""
    values = _quantile(per_row, shares)
    count = per_row.shape[1]
    if count == population:
        return Estimate(values, None)
    unread = 1 - count / population
    wide = [3 * math.sqrt(unread * q * (1 - q) / count) + 1 / count for q in shares]
    below = _quantile(per_row, [max(q - w, 0.0) for q, w in zip(shares, wide, strict=True)])
    above = _quantile(per_row, [min(q + w, 1.0) for q, w in zip(shares, wide, strict=True)])
    return Estimate(values, (above - values).maximum(values - below) / 3)


def _quantile(per_row: Tensor, shares: Sequence[float]) -> Tensor:
    of = torch.tensor(shares, dtype=per_row.dtype, device=per_row.device)
    # One head at a time: torch limits how many numbers it sorts at once.
    by_head = [torch.quantile(one, of) for one in per_row]
    return torch.stack(by_head)
