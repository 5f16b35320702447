"""The mutual information I(i; j) of a token drawn evenly and the token it attends to, in nats.

I = H(mean row) - mean H(P_i). The mean row is exact and linear for every kind but softmax, so I is
as exact as the mean entropy. Softmax of a long text has neither; there I is at least that of the
rows that were read, and at most log N - mean H: the value is the middle, the error half the width
and the sampling error.

Bounds beside: log N, log |P|_F^2 (the token that is attended to being drawn once), and, with LLN,
I(i; channel) <= log D for the share that goes through the channels.
"""

from __future__ import annotations

import math

import torch

from engine.diagnostics.base import Instrument, Quantity, Reading
from engine.diagnostics.collision import mean_collision
from engine.diagnostics.entropy import mean_entropy
from engine.diagnostics.heads import Heads
from engine.diagnostics.statistics import Estimate, error_floats, floats
from engine.diagnostics.work import Work


def measure_mutual_information(heads: Heads) -> Work[Reading]:
    entropy = yield from mean_entropy(heads)
    mean_row = yield from heads.mean_row()
    if mean_row is None:
        estimate = yield from _from_sample(heads, entropy)
        method = "bounds: the rows read, and log N - mean entropy; error: half their distance"
    else:
        values = (torch.special.entr(mean_row).sum(-1) - entropy.values).clamp_min(0.0)
        estimate = Estimate(values, entropy.error)
        exact = entropy.error is None
        method = "exact" if exact else "mean row exact, entropy sampled; standard error"
    return Reading(
        values=floats(estimate.values),
        error=error_floats(estimate.error),
        method=method,
        unit=MUTUAL_INFORMATION.unit,
        cost="that of entropy",
        beside=(yield from _bounds(heads)),
    )


def _from_sample(heads: Heads, entropy: Estimate) -> Work[Estimate]:
    """The sample's own information bounds I from below: mixing fewer rows tells less."""
    assert entropy.error is not None, "a sample has a standard error"
    sample = yield from heads.rows()
    mean_row = sample.row_sum / len(sample.rows)
    own = sample.statistics.entropy.mean(1)
    lower = (torch.special.entr(mean_row).sum(-1) - own).clamp_min(0.0)
    upper = (math.log(heads.num_tokens) - entropy.values).maximum(lower)
    return Estimate((lower + upper) / 2, (upper - lower) / 2 + entropy.error)


def _bounds(heads: Heads) -> Work[dict[str, Quantity]]:
    norm = yield from mean_collision(heads)
    from_norm = (norm.values * heads.num_tokens).log().clamp_min(0.0)
    error = None if norm.error is None else norm.error / norm.values
    bounds = {
        "log_tokens": Quantity(
            values=floats(torch.full_like(norm.values, math.log(heads.num_tokens))), unit="nats"
        ),
        "log_squared_norm": Quantity(
            values=floats(from_norm), unit="nats", error=error_floats(error)
        ),
    }
    if heads.view.has_channels:
        pi = (yield from heads.factors()).pi
        told = torch.special.entr(pi.mean(1)).sum(-1) - (yield from heads.choice_entropies()).mean(
            1
        )
        bounds["channels"] = Quantity(values=floats(told.clamp_min(0.0)), unit="nats")
    return bounds


MUTUAL_INFORMATION = Instrument(
    name="mutual_information",
    unit="nats",
    description="what a token tells of the token it attends to; 0 where all rows are alike. "
    "Beside: its bounds.",
    measure=measure_mutual_information,
)
