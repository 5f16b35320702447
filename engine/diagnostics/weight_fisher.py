"""Fisher information of the attention pattern in W_Q and W_K, as Kronecker factors.

With C_i = Cov_{a_i}(k) and S_i = Cov_{a_i}(x), both under the row's own weights, and c = P^T 1:

    F_Q = (1/D) sum_i x_i x_i^T (x) C_i  ~  (1/(N D)) X^T X (x) (K^T diag(c) K - (P K)^T P K)
    F_K = (1/D) sum_i S_i (x) q_i q_i^T  ~  (1/(N D)) (X^T diag(c) X - (P X)^T P X) (x) Q^T Q

The factors' sums are exact; taking their product for the sum of products is the approximation.
It measures the sensitivity of the attention pattern alone, not of what the model makes of it. The
value is the trace of F_Q; beside are the trace of F_K and, for each factor, its participation ratio
(tr A)^2 / tr A^2: in how many directions it is sensitive.

Traces are means over rows of tr C_i and tr S_i, (P |k|^2)_i - |(P K)_i|^2 and the same of x. P K is
one pass of the operator; P X has as many columns as the states are wide, so of long texts it is
read for a few rows, and the covariance of the states, which would need all, is left out.
"""

from __future__ import annotations

import torch
from torch import Tensor

from engine.diagnostics.base import Instrument, Quantity, Reading
from engine.diagnostics.heads import Heads
from engine.diagnostics.rows import choose_rows, row_tiles
from engine.diagnostics.states import with_squares
from engine.diagnostics.statistics import Estimate, error_floats, floats, mean_of
from engine.diagnostics.work import Work

_STATE_ROWS = 32
_ROUNDING = 1e-12


def measure_weight_fisher(heads: Heads) -> Work[Reading]:
    view = heads.view
    assert heads.states is not None, "named in needs"
    q, k = (part.double().transpose(0, 1) for part in (view.q, view.k))
    keys = with_squares(k)
    yield
    by_row = view.attention == "softmax" and not heads.reads_all_rows
    mean_k, spread_k = yield from _spread(heads, keys, None if not by_row else _STATE_ROWS)
    few = None if heads.reads_all_rows else _STATE_ROWS
    states = yield from heads.states.points()  # the same for every head
    mean_x, spread_x = yield from _spread(heads, states, few)
    gram_x = yield from heads.states.gram()
    gram_q = q.mT @ q
    yield
    trace_q = _times(mean_of(spread_k, heads.num_tokens), _trace(gram_x) / view.head_size)
    trace_k = _times(mean_of(spread_x, heads.num_tokens), _trace(gram_q) / view.head_size)
    beside = {
        "trace_k": Quantity(
            values=floats(trace_k.values),
            unit=WEIGHT_FISHER.unit,
            error=error_floats(trace_k.error),
        ),
        "rank_q_states": _directions(gram_x.expand(heads.num_heads, -1, -1)),
        "rank_k_queries": _directions(gram_q),
    }
    reached = yield from heads.mean_row()
    if reached is not None:
        beside["rank_q_keys"] = _directions(_covariance(keys, mean_k, reached))
        if heads.reads_all_rows:
            beside["rank_k_states"] = _directions(_covariance(states, mean_x, reached))
    return Reading(
        values=floats(trace_q.values),
        error=error_floats(trace_q.error),
        method="exact traces of the Kronecker factors"
        if heads.reads_all_rows
        else f"traces of the Kronecker factors, states from {_STATE_ROWS} rows; standard error",
        unit=WEIGHT_FISHER.unit,
        cost=f"{_STATE_ROWS} N W + N W^2",
        beside=beside,
    )


def _spread(heads: Heads, points: Tensor, num_rows: int | None) -> Work[tuple[Tensor, Tensor]]:
    """(P Z)_i and (P |z|^2)_i - |(P Z)_i|^2, of so many rows or of all: [H, rows, W], [H, rows].

    The points have |z|^2 as their last column.
    """
    if num_rows is None:
        operator = yield from heads.operator()
        reached = yield from operator(points.expand(heads.num_heads, -1, -1))
    else:
        reached = yield from _of_rows(heads, points, num_rows)
    mean = reached[..., :-1]
    return mean, reached[..., -1] - mean.square().sum(-1)


def _of_rows(heads: Heads, values: Tensor, count: int) -> Work[Tensor]:
    """Some rows of P Z: [H, rows, columns]."""
    reader = yield from heads.row_reader()
    rows = choose_rows(heads.view, count, heads.effort.seed)
    values = values.to(reader.dtype)
    found = []
    for tile in row_tiles(heads.view, len(rows)):
        matrix = reader.full(rows[tile])
        product = matrix @ values if len(values) > 1 else _of_all(matrix, values[0])
        found.append(product.double())
        yield
    return torch.cat(found, dim=1)


def _of_all(matrix: Tensor, values: Tensor) -> Tensor:
    """One product for all heads, which copies `values` for none of them."""
    product: Tensor = (matrix.flatten(0, 1) @ values).unflatten(0, matrix.shape[:2])  # type: ignore[no-untyped-call]
    return product


def _covariance(points: Tensor, means: Tensor, reached: Tensor) -> Tensor:
    """(1/N) sum_i Cov_{a_i}(z): [H, W, W]."""
    points = points[..., :-1]
    whole = (points * reached.unsqueeze(-1)).mT @ points
    rest = whole - means.mT @ means / points.shape[1]
    is_rounding = _trace(rest) <= _ROUNDING * _trace(whole)
    return rest.masked_fill(is_rounding.view(-1, 1, 1), 0.0)


def _times(estimate: Estimate, factor: Tensor) -> Estimate:
    error = None if estimate.error is None else estimate.error * factor
    return Estimate(estimate.values * factor, error)


def _trace(matrices: Tensor) -> Tensor:
    return matrices.diagonal(dim1=1, dim2=2).sum(1)


def _directions(matrices: Tensor) -> Quantity:
    """(tr A)^2 / tr A^2, 0 for a factor that vanishes."""
    squares = matrices.square().sum((1, 2))
    ratio = torch.where(squares > 0, _trace(matrices).square() / squares, 0.0)
    return Quantity(values=floats(ratio), unit="directions")


WEIGHT_FISHER = Instrument(
    name="weight_fisher",
    unit="score^2 / weight^2",
    description="trace of the Fisher information of the attention pattern in W_Q, in Kronecker "
    "form. Beside: the trace for W_K, and in how many directions each factor is sensitive.",
    measure=measure_weight_fisher,
    needs=("x",),
)
