"""The implicit temperature of a head: how much its scores vary along a row.

The LLN paper defines (eq. 5) tau = 1 / sigma, sigma^2 the variance of the scores
a_ij = q_i . k_j / sqrt(D). It takes sigma^2 = var(q) var(k) + C_cross over all elements, which is
right only when both are isotropic, and counts differences between rows, to which a softmax is
blind; it is read beside. Here sigma^2 is the mean over rows of the variance within the row:

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

from engine.diagnostics.base import Instrument, Quantity, Reading
from engine.diagnostics.factors import token_tiles
from engine.diagnostics.heads import Heads
from engine.diagnostics.statistics import floats
from engine.diagnostics.work import Work

HIGHEST = 1e6


def measure_temperature(heads: Heads) -> Work[Reading]:
    """tau = 1 / sigma of every head."""
    view = heads.view
    yield
    if view.attention == "block_diagonal":
        variance = yield from _variance_in_blocks(heads)
        rows, cost = "the keys its block sees", "N b D"
    else:
        grams = yield from heads.grams()
        variance = (grams.q * grams.k_covariance).sum((1, 2)).clamp_min(0.0) / view.num_tokens
        variance *= view.scale**2
        rows, cost = "the whole sequence", "N D^2"
    return Reading(
        values=floats(_temperature_of(variance)),
        error=None,
        method=f"exact: 1 / sqrt(mean variance of q.k / sqrt(D) over {rows})",
        unit=TEMPERATURE.unit,
        cost=cost,
        beside={
            "paper": Quantity(
                values=floats(_temperature_of(element_variance(view.q, view.k))),
                unit=TEMPERATURE.unit,
            )
        },
    )


def score_variance(q: Tensor, k: Tensor) -> Tensor:
    """(1/N) sum_i Var_j(q_i . k_j) of [N, H, D] in float64: [H]."""
    centred = k - k.mean(0)
    covariance = torch.einsum("jhc,jhd->hcd", centred, centred) / len(k)
    gram = torch.einsum("ihc,ihd->hcd", q, q) / len(q)
    return (gram * covariance).sum((1, 2)).clamp_min(0.0)


def element_variance(q: Tensor, k: Tensor) -> Tensor:
    """Eq. 5: var(q) var(k) + C_cross, C_cross = cov(q^2, k^2) - cov(q, k)^2 of paired elements."""
    count = q.shape[0] * q.shape[2]
    tiles = list(token_tiles(len(q)))
    means = [torch.stack([_flat(x, tile).sum(1) for tile in tiles]).sum(0) / count for x in (q, k)]
    sums = q.new_zeros(2, q.shape[1], dtype=torch.float64)
    for tile in tiles:
        a, b = (_flat(x, tile) - mean.unsqueeze(1) for x, mean in zip((q, k), means, strict=True))
        products = a.mul_(b)
        sums += torch.stack([products.sum(1), torch.linalg.vecdot(products, products)])
    cross, squares = sums / count
    # var(q) var(k) + cov(q^2, k^2) is the mean of q^2 k^2.
    variance: Tensor = (squares - cross.square()).clamp_min(0.0)
    return variance


def _flat(x: Tensor, tile: slice) -> Tensor:
    """The elements of some tokens: [H, elements] in float64."""
    return x[tile].double().transpose(0, 1).flatten(1)


def _temperature_of(variance: Tensor) -> Tensor:
    return 1.0 / variance.sqrt().clamp_min(1.0 / HIGHEST)


def _variance_in_blocks(heads: Heads) -> Work[Tensor]:
    blocks = heads.blocks
    assert blocks is not None, "block-diagonal attention has blocks"
    q, k = heads.view.q.double() * heads.view.scale, heads.view.k.double()
    total = q.new_zeros(heads.num_heads)
    for block in range(blocks.count):
        rows = q[block * blocks.width : (block + 1) * blocks.width]
        total += len(rows) * score_variance(rows, k[blocks.keys[block][blocks.seen[block]]])
        yield
    return total / heads.num_tokens


TEMPERATURE = Instrument(
    name="temperature",
    unit="dimensionless",
    description="1 / standard deviation of a row's scores; high is even, low is sharp. "
    "Beside: the paper's eq. 5.",
    measure=measure_temperature,
)
