"""How far a head's attention is from softmax attention with the same queries, keys and values.

The value is the mean over rows of KL(P_i | S_i) = sum_j P_ij log(P_ij / S_ij) in nats, S being
softmax. In this direction it is finite for kinds that hide keys. Beside, from the same rows:

- quantiles: the KL that a tenth, half and nine tenths of the rows stay below, or other shares of
  the rows that were asked for;
- total_variation: mean half L1 distance of the rows, the share of attention that lies elsewhere;
- output_error: |P V - S V| / |S V|, over all rows that were read;
- by_part: mean KL in each quarter of the text, to see where along it they differ;
- worst_rows: the tokens with the largest KL, where every row was read.

Every row costs its dense length, of both matrices; long texts are read by a sample of rows. Softmax
heads answer 0 without reading any.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from engine.diagnostics import quantiles
from engine.diagnostics.head_group import HeadGroup
from engine.diagnostics.instrument import Instrument
from engine.diagnostics.readings import Quantity, Reading, error_floats, floats
from engine.diagnostics.rows import HeadRows, row_tiles
from engine.diagnostics.sampling import (
    Estimate,
    choose_rows,
    ends_of,
    few_rows_factor,
    mean_of,
    row_weights,
    standard_error,
)
from engine.steps import Steps

QUANTILES = (0.1, 0.5, 0.9)
NUM_PARTS = 4
NUM_WORST = 4
_FEWEST_ROWS = 12
"""A part of the text needs as many rows of a sample for a mean of its own."""


class _Differences(NamedTuple):
    """How single rows differ: [H, rows] each."""

    kl: Tensor
    variation: Tensor
    output: Tensor  # |(P V - S V)_i|^2
    softmax_output: Tensor  # |(S V)_i|^2


def measure_softmax_divergence(heads: HeadGroup) -> Steps[Reading]:
    count = heads.effort.num_rows(heads.num_tokens)
    rows = choose_rows(heads.view, count, heads.effort.seed)
    found = yield from _differences(heads, rows)
    limit = 0.0, math.inf
    mean = mean_of(found.kl, heads.num_tokens, limits=limit)
    variation = mean_of(found.variation, heads.num_tokens, limits=(0.0, 1.0))
    shares = heads.effort.quantiles or QUANTILES
    beside = {
        quantiles.NAME: quantiles.quantiles_quantity(
            found.kl, shares, heads.num_tokens, SOFTMAX_DIVERGENCE.unit
        ),
        "total_variation": _quantity(variation, "probability"),
        "output_error": _quantity(_output_error(found, heads.num_tokens), "dimensionless"),
    }
    beside |= _where(found.kl, rows, heads)
    is_softmax = heads.view.attention == "softmax"
    exact = "exact: it is softmax" if is_softmax else "exact: every row"
    sampled = f"sampled: {count} rows; standard error"
    return Reading(
        values=floats(mean.values),
        error=error_floats(mean.error),
        method=exact if is_softmax or count == heads.num_tokens else sampled,
        unit=SOFTMAX_DIVERGENCE.unit,
        cost="1" if is_softmax else f"{'N^2' if count == heads.num_tokens else f'{count} N'} D",
        beside=beside,
    )


def _differences(heads: HeadGroup, rows: Tensor) -> Steps[_Differences]:
    if heads.view.attention == "softmax":
        zeros = torch.zeros(heads.num_heads, heads.num_tokens, dtype=torch.float64)
        zeros = zeros.to(heads.view.q.device)
        return _Differences(zeros, zeros, zeros, torch.ones_like(zeros))
    assert heads.view.v is not None, "listed in needs"
    reader = yield from heads.row_reader()
    v = heads.view.v.to(reader.dtype).transpose(0, 1)  # [H, N, D]
    parts = []
    for tile in row_tiles(heads.view, len(rows)):
        parts.append(_differences_of(reader, rows[tile], v))
        yield
    columns = (torch.cat(part, dim=1).double() for part in zip(*parts, strict=True))
    return _Differences(*columns)


def _differences_of(reader: HeadRows, rows: Tensor, v: Tensor) -> _Differences:
    log_softmax = torch.bmm(reader.queries(rows), reader.keys).log_softmax(-1)
    own, softmax = reader.full(rows), log_softmax.exp()
    apart = own - softmax
    kl = torch.xlogy(own, own).sum(-1) - torch.linalg.vecdot(own, log_softmax)
    return _Differences(
        kl.clamp_min(0.0),
        (apart.abs().sum(-1) / 2).clamp_max(1.0),
        (apart @ v).square().sum(-1),
        (softmax @ v).square().sum(-1),
    )


def _output_error(found: _Differences, population: int) -> Estimate:
    """The ratio of two root mean squares. In a sample, by the jackknife: what it is without each of
    the rows that were drawn tells how much it depends on which were."""
    apart, whole = found.output, found.softmax_output
    num_rows = apart.shape[1]
    weights = row_weights(num_rows, population).to(apart)
    ratio = _root(apart @ weights, whole @ weights)
    if num_rows == population:
        return Estimate(ratio, None)
    first, last = ends_of(num_rows, population)
    drawn, count = slice(first, num_rows - last), num_rows - first - last
    if count == 1:
        return Estimate(ratio, ratio.clamp_min(1.0))
    without = _root(*(_without_each(part, weights, drawn) for part in (apart, whole)))
    deviations = (ratio.unsqueeze(1) - without) * (count - 1)
    error = standard_error(deviations, population - first - last)
    return Estimate(ratio, error * few_rows_factor(apart[:, drawn]))


def _without_each(per_row: Tensor, weights: Tensor, drawn: slice) -> Tensor:
    """The weighted mean without each of the rows that were drawn: [H, drawn rows]."""
    weighted = per_row * weights
    of_drawn = weighted[:, drawn]
    total = of_drawn.sum(1, keepdim=True)
    ends = weighted.sum(1, keepdim=True) - total
    count = of_drawn.shape[1]
    return ends + (total - of_drawn) * (count / (count - 1))


def _root(squares: Tensor, of: Tensor) -> Tensor:
    return (squares.clamp_min(0.0) / of.clamp_min(1e-300)).sqrt()


def _where(kl: Tensor, rows: Tensor, heads: HeadGroup) -> dict[str, Quantity]:
    """Where along the text the two differ most. Short texts and small samples have too few rows."""
    found: dict[str, Quantity] = {}
    length = heads.num_tokens
    is_whole = kl.shape[1] == length
    edges = [length * part // NUM_PARTS for part in range(NUM_PARTS + 1)]
    if is_whole:
        rows = torch.arange(length, device=kl.device)
        worst = kl.topk(min(NUM_WORST, length), dim=1).indices
        found["worst_rows"] = Quantity(values=floats(worst), unit="token")
    spans = list(pairwise(edges))
    inside = [(rows >= start) & (rows < end) for start, end in spans]
    first, last = ends_of(kl.shape[1], length)
    chosen = [(first, 0), *[(0, 0)] * (NUM_PARTS - 2), (0, last)]
    if min(int(part.sum()) for part in inside) >= _FEWEST_ROWS:
        means = [
            mean_of(kl[:, part], end - start, limits=(0.0, math.inf), ends=ends)
            for part, (start, end), ends in zip(inside, spans, chosen, strict=True)
        ]
        values = torch.stack([one.values for one in means], dim=1)
        errors = [one.error for one in means if one.error is not None]
        error = None
        if len(errors) == NUM_PARTS:
            # The few rows of a part may all be alike where the rest of the text says otherwise.
            spread = kl.std(1)
            unread = [
                (1 - int(part.sum()) / (end - start)) / int(part.sum())
                for part, (start, end) in zip(inside, spans, strict=True)
            ]
            pooled = spread.unsqueeze(1) * kl.new_tensor(unread).sqrt()
            error = torch.stack(errors, dim=1).maximum(pooled)
        found["by_part"] = _quantity(Estimate(values, error), SOFTMAX_DIVERGENCE.unit)
    return found


def _quantity(estimate: Estimate, unit: str) -> Quantity:
    return Quantity(values=floats(estimate.values), unit=unit, error=error_floats(estimate.error))


SOFTMAX_DIVERGENCE = Instrument(
    name="softmax_divergence",
    unit="nats",
    description="mean KL of the attention rows from softmax with the same queries and keys; 0 is "
    "softmax. Beside: quantiles over rows, total variation, the relative error of the head's "
    "output, KL by quarter of the text, and the rows that differ most where all were read.",
    measure=measure_softmax_divergence,
    needs=("v",),
)
