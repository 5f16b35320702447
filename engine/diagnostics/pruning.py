"""How much a head adds to the states: |P V W_O|, the norm of its part of the layer's output.

The value is the root mean square over tokens; a head that adds little can be pruned. Beside: the
same relative to the states that the layer reads. P V is one pass of the operator, exact, and linear
for all kinds but softmax; a softmax head of a long text is read by a sample of rows.
"""

from __future__ import annotations

import torch
from torch import Tensor

from engine.diagnostics.head_group import HeadGroup
from engine.diagnostics.instrument import Instrument
from engine.diagnostics.quantiles import quantiles_over_rows
from engine.diagnostics.readings import Quantity, Reading, error_floats, floats
from engine.diagnostics.rows import row_tiles
from engine.diagnostics.sampling import Estimate, choose_rows, mean_of
from engine.steps import Steps


def measure_pruning(heads: HeadGroup) -> Steps[Reading]:
    squares = yield from _squared_norms(heads)
    mean = mean_of(squares, heads.num_tokens)
    norm = mean.values.sqrt()
    assert heads.states is not None, "listed in needs"
    states = (yield from heads.states.mean_square()).sqrt().clamp_min(1e-300)
    error = None if mean.error is None else mean.error / (2 * norm.clamp_min(1e-300))
    estimate = Estimate(norm, error)
    return Reading(
        values=floats(norm),
        error=error_floats(estimate.error),
        method="exact: |P V W_O|" if error is None else "sampled rows; standard error",
        unit=PRUNING.unit,
        cost={"softmax": "rows N D", "lln": "N D^2"}.get(heads.view.attention, "N b D"),
        beside={
            "relative": Quantity(
                values=floats(norm / states),
                unit="dimensionless",
                error=error_floats(None if error is None else error / states),
            ),
        }
        | quantiles_over_rows(heads, squares.clamp_min(0.0).sqrt(), PRUNING.unit),
    )


def _squared_norms(heads: HeadGroup) -> Steps[Tensor]:
    """|(P V W_O)_i|^2 of the rows that are read: [H, rows]."""
    assert heads.view.v is not None, "listed in needs"
    assert heads.view.out is not None, "listed in needs"
    v = heads.view.v.double().transpose(0, 1)  # [H, N, D]
    gram = heads.view.out.double() @ heads.view.out.double().mT  # [H, D, D]
    yield
    if heads.view.attention == "softmax" and not heads.reads_all_rows:
        attended = yield from _of_sample(heads, v)
    else:
        operator = yield from heads.operator()
        attended = yield from operator(v)
    yield
    squares: Tensor = torch.linalg.vecdot(attended @ gram, attended)
    return squares


def _of_sample(heads: HeadGroup, v: Tensor) -> Steps[Tensor]:
    count = heads.effort.num_rows(heads.num_tokens)
    rows = choose_rows(heads.view, count, heads.effort.seed)
    reader = yield from heads.row_reader()
    v = v.to(reader.dtype)
    found = []
    for tile in row_tiles(heads.view, count):
        found.append((reader.full(rows[tile]) @ v).double())
        yield
    return torch.cat(found, dim=1)


PRUNING = Instrument(
    name="pruning",
    unit="state",
    description="root mean square of what a head adds to the states. Beside: the same "
    "relative to the states that the layer reads.",
    measure=measure_pruning,
    needs=("v", "x", "out"),
)
