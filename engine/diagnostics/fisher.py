"""Fisher information of a head's attention pattern: in the weights W_Q and W_K, and in the logits.

In the weights, as Kronecker factors. With C_i = Cov_{a_i}(k) and S_i = Cov_{a_i}(x), both under the
row's own weights, and c = P^T 1:

    F_Q = (1/D) sum_i x_i x_i^T (x) C_i  ~  (1/(N D)) X^T X (x) (K^T diag(c) K - (P K)^T P K)
    F_K = (1/D) sum_i S_i (x) q_i q_i^T  ~  (1/(N D)) (X^T diag(c) X - (P X)^T P X) (x) Q^T Q

The factors' sums are exact; the approximation is to replace the sum of products by their product.
It measures how sensitive the attention pattern is, not the output of the model. The value is the
trace of F_Q; beside are the trace of F_K and, for each factor, its participation ratio
(tr A)^2 / tr A^2: in how many directions it is sensitive. Traces are means over rows of tr C_i and
tr S_i, that is of (P |k|^2)_i - |(P K)_i|^2 and the same for x. P K is one pass of the operator.
P X has as many columns as the states are wide, so for long texts it is read for a few rows, and the
covariance of the states, which needs all rows, is not read.

In the logits: diag(a) - a a^T for a row a, whose trace is 1 - |a|^2: 0 if a token attends to one
token alone, 1 - 1/N if it attends evenly. The value is the mean trace over rows, from the rows'
collisions: exact and linear for all kinds but softmax. The eigenvalues solve the secular equation
sum_j a_j^2 / (a_j - x) = 1, whose roots interlace the sorted a; the largest lies between the two
largest a_j. Their means are read from a few rows beside, since the largest eigenvalue limits the
step of a gradient in the logits.
"""

from __future__ import annotations

import torch
from torch import Tensor

from engine.diagnostics.entropy import NUM_SHARPEST, mean_collision
from engine.diagnostics.head_group import HeadGroup
from engine.diagnostics.head_view import with_squares
from engine.diagnostics.instrument import Instrument
from engine.diagnostics.quantiles import quantiles_over_rows
from engine.diagnostics.readings import Quantity, Reading, error_floats, floats
from engine.diagnostics.rows import row_tiles
from engine.diagnostics.sampling import Estimate, choose_rows, mean_of
from engine.steps import Steps

NUM_EIGENVALUES = 2
_STATE_ROWS = 48
_ROUNDING = 1e-12
_SPECTRUM_ROWS = 48
_MAX_STEPS = 60
_PRECISION, _PRECISION_OF_SAMPLES = 1e-13, 1e-5


def measure_weight_fisher(heads: HeadGroup) -> Steps[Reading]:
    view = heads.view
    assert heads.states is not None, "listed in needs"
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
    of_keys = yield from _mean_spread(heads, spread_k, keys)
    of_states = yield from _mean_spread(heads, spread_x, states)
    trace_q = _times(of_keys, _trace(gram_x) / view.head_size)
    trace_k = _times(of_states, _trace(gram_q) / view.head_size)
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


def _mean_spread(heads: HeadGroup, per_row: Tensor, points: Tensor) -> Steps[Estimate]:
    """The mean over all rows. What a row attends to spreads the less, the fewer tokens they are,
    and by no more than its farthest point."""
    controls = []
    if per_row.shape[1] < heads.num_tokens:
        control = yield from heads.spreads()
        rows = choose_rows(heads.view, per_row.shape[1], heads.effort.seed)
        controls = [(control[:, rows], control.mean(1))]
    return mean_of(per_row, heads.num_tokens, controls, limits=(0.0, float(points[..., -1].max())))


def _spread(heads: HeadGroup, points: Tensor, num_rows: int | None) -> Steps[tuple[Tensor, Tensor]]:
    """(P Z)_i and (P |z|^2)_i - |(P Z)_i|^2, of the given rows or of all: [H, rows, W], [H, rows].

    The points have |z|^2 as their last column.
    """
    if num_rows is None:
        operator = yield from heads.operator()
        reached = yield from operator(points.expand(heads.num_heads, -1, -1))
    else:
        reached = yield from _of_rows(heads, points, num_rows)
    mean = reached[..., :-1]
    return mean, reached[..., -1] - mean.square().sum(-1)


def _of_rows(heads: HeadGroup, values: Tensor, count: int) -> Steps[Tensor]:
    """Some rows of P Z: [H, rows, columns]."""
    reader = yield from heads.row_reader()
    rows = choose_rows(heads.view, count, heads.effort.seed)
    values = values.to(reader.dtype)
    found = []
    for tile in row_tiles(heads.view, len(rows)):
        matrix = reader.full(rows[tile])
        product = matrix @ values if len(values) > 1 else _shared_product(matrix, values[0])
        found.append(product.double())
        yield
    return torch.cat(found, dim=1)


def _shared_product(matrix: Tensor, values: Tensor) -> Tensor:
    """One product for all heads, without a copy of `values` for each."""
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
    """(tr A)^2 / tr A^2, 0 if the factor vanishes."""
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


def measure_attention_fisher(heads: HeadGroup) -> Steps[Reading]:
    collision = yield from mean_collision(heads)
    trace = Estimate(1 - collision.values, collision.error)
    traces = 1 - (yield from heads.collisions())
    spectrum = yield from _mean_spectrum(heads)
    by_row = spectrum.transpose(1, 2)  # [H, eigenvalues, rows]
    bound = yield from _bound_of_eigenvalues(heads)
    estimates = [_mean_eigenvalue(heads, one, bound) for one in by_row.unbind(1)]
    errors = [one.error for one in estimates if one.error is not None]
    num_rows = heads.effort.num_rows(heads.num_tokens)
    sampled = f"the {NUM_SHARPEST} sharpest rows and a sample of {num_rows}; standard error"
    return Reading(
        values=floats(trace.values),
        error=error_floats(trace.error),
        method="exact: 1 - sum of squares" if trace.error is None else sampled,
        unit=ATTENTION_FISHER.unit,
        cost=f"{_SPECTRUM_ROWS} N D + " + _cost_of_collisions(heads),
        beside={
            "eigenvalues": Quantity(
                values=floats(torch.stack([one.values for one in estimates], dim=1)),
                unit=ATTENTION_FISHER.unit,
                error=floats(torch.stack(errors, dim=1)) if errors else None,
            )
        }
        | quantiles_over_rows(heads, traces, ATTENTION_FISHER.unit),
    )


def _bound_of_eigenvalues(heads: HeadGroup) -> Steps[Tensor]:
    """No eigenvalue of a row is above 1/2, its trace, and the root of the sum of its squares."""
    spreads = yield from heads.spreads()
    return spreads.minimum((1 - spreads).sqrt()).clamp_max(0.5)


def _mean_eigenvalue(heads: HeadGroup, per_row: Tensor, bound: Tensor) -> Estimate:
    """The mean over all rows, of [H, rows]; the bound is known of every row."""
    rows = choose_rows(heads.view, per_row.shape[1], heads.effort.seed)
    controls = [(bound[:, rows], bound.mean(1))]
    return mean_of(per_row, heads.num_tokens, controls, limits=(0.0, 0.5))


def _cost_of_collisions(heads: HeadGroup) -> str:
    if heads.view.attention == "softmax":
        return f"{heads.effort.num_rows(heads.num_tokens)} N D"
    return "N b D" if heads.view.has_blocks else "N D^2"


def _mean_spectrum(heads: HeadGroup) -> Steps[Tensor]:
    """The leading eigenvalues of a few rows, of all rows of a short text: [H, rows, k]."""
    view = heads.view
    reader = yield from heads.row_reader()
    wanted = heads.num_tokens if heads.num_tokens <= heads.effort.max_dense_tokens else 0
    rows = choose_rows(view, max(wanted, _SPECTRUM_ROWS), heads.effort.seed)
    precision = _PRECISION if wanted else _PRECISION_OF_SAMPLES
    found = []
    for tile in row_tiles(view, len(rows)):
        matrix = reader.full(rows[tile]).double()
        for some in torch.split(matrix, max(1, matrix.shape[1] // NUM_EIGENVALUES), dim=1):
            found.append(leading_eigenvalues(some, NUM_EIGENVALUES, precision))
            yield
    return torch.cat(found, dim=1)


def leading_eigenvalues(a: Tensor, count: int, precision: float = _PRECISION) -> Tensor:
    """The leading eigenvalues of diag(a) - a a^T, for a [..., N] that sums to 1: [..., count], 0
    where N is smaller."""
    largest = a.topk(min(count + 1, a.shape[-1]), dim=-1).values
    values = a.new_zeros(*a.shape[:-1], count)
    found = largest.shape[-1] - 1
    values[..., :found] = _roots_between(a, largest[..., 1:], largest[..., :-1], precision)
    return values


def _roots_between(a: Tensor, lower: Tensor, upper: Tensor, precision: float) -> Tensor:
    """The roots of the secular equation of a [..., N], one between each pair of poles lower and
    upper [..., k], all found in the same steps.

    Between two neighbours of the sorted a, sum_j a_j^2 / (a_j - x) - 1 rises from -inf to inf.
    Multiplied by its two poles it is smooth, and the Illinois rule finds its root.
    """
    width = upper - lower
    a = a.unsqueeze(-2)
    squares, terms = a.square(), a.new_empty(*lower.shape, a.shape[-1])
    low, high = lower, upper
    at_low, at_high = -lower.square() * width, upper.square() * width
    for _ in range(_MAX_STEPS):
        step = ((high - low) * at_low / (at_low - at_high)).nan_to_num_(0.0)
        middle = (low + step).clamp(low, high)
        torch.sub(a, middle.unsqueeze(-1), out=terms)
        excess = torch.div(squares, terms, out=terms).sum(-1) - 1
        at_middle = excess * (upper - middle) * (middle - lower)
        is_above = at_middle > 0
        # Halve the value at the end that stays, or it would stay for ever.
        at_low = torch.where(is_above, at_low / 2, at_middle)
        at_high = torch.where(is_above, at_middle, at_high / 2)
        low, high = torch.where(is_above, low, middle), torch.where(is_above, middle, high)
        if bool((step.minimum(high - low) <= precision * upper).all()):
            break
    return torch.where(width > 0, middle, upper)  # equal neighbours have their root at the pole


ATTENTION_FISHER = Instrument(
    name="attention_fisher",
    unit="dimensionless",
    description="mean trace of the Fisher information of a row's distribution in its logits, "
    "1 - sum of squares; 0 is one token. Beside: its mean leading eigenvalues.",
    measure=measure_attention_fisher,
)
