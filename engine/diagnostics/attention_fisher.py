"""The Fisher information of the attention distribution in its logits: diag(a) - a a^T for a row a.

Its trace is 1 - |a|^2: 0 where a token attends to one other alone, 1 - 1/N where it attends evenly.
The value is the mean trace over rows; with LLN it is linear, from the overlaps of the channels.

Eigenvalues solve the secular equation sum_j a_j^2 / (a_j - x) = 1, whose roots interlace the sorted
a. The largest lies between the two largest a_j; its mean is read from a few rows beside, as the
largest eigenvalue is what limits the step of a gradient in the logits.
"""

from __future__ import annotations

import torch
from torch import Tensor

from engine.diagnostics.base import Instrument, Quantity, Reading
from engine.diagnostics.collision import NUM_SHARPEST, mean_collision
from engine.diagnostics.heads import Heads
from engine.diagnostics.rows import choose_rows, row_tiles
from engine.diagnostics.statistics import Estimate, error_floats, floats, mean_of
from engine.diagnostics.work import Work

NUM_EIGENVALUES = 2
_SPECTRUM_ROWS = 8
_MAX_STEPS = 60
_PRECISION, _PRECISION_OF_SAMPLES = 1e-13, 1e-5


def measure_attention_fisher(heads: Heads) -> Work[Reading]:
    collision = yield from mean_collision(heads)
    trace = Estimate(1 - collision.values, collision.error)
    spectrum = yield from _mean_spectrum(heads)
    by_row = spectrum.transpose(1, 2)  # [H, eigenvalues, rows]
    estimates = [mean_of(rows, heads.num_tokens) for rows in by_row.unbind(1)]
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
        },
    )


def _cost_of_collisions(heads: Heads) -> str:
    if heads.view.attention == "softmax":
        return f"{heads.effort.num_rows(heads.num_tokens)} N D"
    return "N b D" if heads.view.has_blocks else "N D^2"


def _mean_spectrum(heads: Heads) -> Work[Tensor]:
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
    """Of diag(a) - a a^T, a [..., N] summing to 1: [..., count], 0 where N is smaller."""
    largest = a.topk(min(count + 1, a.shape[-1]), dim=-1).values
    values = a.new_zeros(*a.shape[:-1], count)
    found = largest.shape[-1] - 1
    values[..., :found] = _roots_between(a, largest[..., 1:], largest[..., :-1], precision)
    return values


def _roots_between(a: Tensor, lower: Tensor, upper: Tensor, precision: float) -> Tensor:
    """Of the secular equation of a [..., N], one between each two poles lower and upper [..., k],
    all found in the same steps.

    Between two neighbours of the sorted a, sum_j a_j^2 / (a_j - x) - 1 rises from -inf to inf;
    times its two poles it is smooth, and the Illinois rule finds its root.
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
        # The end that stays counts for half, or it would stay for ever.
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
