"""The implicit temperature of a head: how much its scores vary along a row.

The LLN paper defines (eq. 5) tau = 1 / sigma, sigma^2 the variance of the scores
a_ij = q_i . k_j / sqrt(D). It estimates sigma from the element variances of q and k, which is right
only when both are isotropic, and counts differences between rows, to which a softmax is blind.
Here sigma^2 is the mean over rows of the variance within the row, exactly:

    sigma^2 = (1/N) sum_i Var_j(a_ij) = tr(Q^T Q Cov(K)) / (N D),

in O(N D^2) and unchanged by any shift of the keys. For softmax and for the kinds with an LLN branch
(which stands in for the softmax of these very scores) a row is the whole sequence; for
block-diagonal attention it is the keys that the block sees.

A head whose scores do not vary at all, such as that of a single token, has no finite temperature:
it reads HIGHEST.
"""

from __future__ import annotations

import torch
from torch import Tensor

from engine.diagnostics.base import Effort, HeadView, Instrument, Reading

HIGHEST = 1e6


def measure_temperature(view: HeadView, effort: Effort) -> Reading:
    """tau = 1 / sigma of every head."""
    del effort  # always exact, always linear
    q, k = view.q.double(), view.k.double()
    if view.attention == "block_diagonal":
        total, rows = _variance_in_blocks(view, q, k), "the keys its block sees"
    else:
        total, rows = _row_variance(q, k), "the whole sequence"
    sigma = (total / view.num_tokens).sqrt() * view.scale
    values = 1.0 / sigma.clamp_min(1.0 / HIGHEST)
    return Reading(
        values=values.cpu().numpy(),
        error=None,
        method=f"exact: 1 / sqrt(mean variance of q.k / sqrt(D) over {rows})",
        unit=TEMPERATURE.unit,
    )


def _variance_in_blocks(view: HeadView, q: Tensor, k: Tensor) -> Tensor:
    total = q.new_zeros(view.num_heads)
    for block in range(view.num_blocks):
        rows = slice(block * view.block_size, (block + 1) * view.block_size)
        total += _row_variance(q[rows], k[view.visible_keys(block)])
    return total


def _row_variance(q: Tensor, k: Tensor) -> Tensor:
    """sum_i Var_j(q_i . k_j) of every head: [H]."""
    centred = k - k.mean(0)
    covariance = torch.einsum("jhc,jhd->hcd", centred, centred) / k.shape[0]
    gram = torch.einsum("ihc,ihd->hcd", q, q)
    return (gram * covariance).sum((1, 2)).clamp_min(0.0)


TEMPERATURE = Instrument(
    name="temperature",
    unit="dimensionless",
    description="1 / standard deviation of a row's scores; high is even, low is sharp",
    measure=measure_temperature,
)
