"""The effective rank of a head's attention matrix, its singular values and its norm.

The value is the participation ratio (sum s^2)^2 / sum s^4 of the squared singular values: N for the
identity, 1 if all rows are alike. Beside: |P|_F, the leading singular values, the stable rank
|P|_F^2 / s_1^2 and, where all singular values are known, the entropy rank exp(H(s / sum s)).

- LLN: QR of pi and of kappa^T, then the D x D singular values: exact, linear.
- Short texts, and in mode "exact" texts up to 4,096 tokens: all singular values of the dense
  matrix, one head at a time, with pauses (`singular_values.py`).
- Otherwise an estimate: |P|_F^2 from the rows' collisions; the leading singular
  values by subspace iteration, each within its residual; and sum s^4 = |P^T P|_F^2, exactly on that
  subspace, and from random vectors orthogonal to it with their standard error.
"""

from __future__ import annotations

import torch
from torch import Tensor

from engine.diagnostics.entropy import mean_collision
from engine.diagnostics.head_group import HeadGroup
from engine.diagnostics.head_view import token_tiles
from engine.diagnostics.instrument import Instrument
from engine.diagnostics.linear_algebra import one_thread, orthonormal
from engine.diagnostics.lln_diag import Factors
from engine.diagnostics.readings import Quantity, Reading, error_floats, floats
from engine.diagnostics.rows import HeadRows, row_tiles
from engine.diagnostics.sampling import few_samples_factor, skewness_term
from engine.diagnostics.singular_values import singular_values
from engine.steps import Steps

NUM_SINGULAR_VALUES = 8
_WIDTH = 16
_PROBES = 16
_PASSES = 3


def measure_effective_rank(heads: HeadGroup) -> Steps[Reading]:
    if heads.view.attention == "lln":
        factors = yield from heads.factors()
        values = yield from _lln_singular_values(factors)
        return _exactly(values, "exact: QR of pi and kappa", "N D^2")
    if heads.effort.has_all_singular_values(heads.num_tokens):
        values = yield from _dense_singular_values(heads)
        return _exactly(values, "exact: singular values of the N x N matrix", "N^3")
    return (yield from _sketched(heads))


def _lln_singular_values(factors: Factors) -> Steps[Tensor]:
    left = yield from _triangle(factors.pi)
    right = yield from _triangle(factors.kappa.mT)
    with one_thread():
        values: Tensor = torch.linalg.svdvals(left @ right.mT)
    return values


def _triangle(columns: Tensor) -> Steps[Tensor]:
    """R of the QR of [H, N, D], some tokens at a time."""
    triangle = columns[:, :0]
    for tile in token_tiles(columns.shape[1]):
        with one_thread():
            stacked = torch.cat([triangle, columns[:, tile]], dim=1)
            triangle = torch.linalg.qr(stacked, mode="r").R
        yield
    return triangle


def _dense_singular_values(heads: HeadGroup) -> Steps[Tensor]:
    found = []
    for head in range(heads.num_heads):  # one N x N matrix at a time
        matrix = yield from _dense_matrix(HeadGroup(heads.view.only([head]), heads.effort))
        found.append((yield from singular_values(matrix)))
    return torch.stack(found)


def _dense_matrix(head: HeadGroup) -> Steps[Tensor]:
    """A single head's attention matrix: [N, N] in float64."""
    factors = (yield from head.factors()) if head.view.has_channels else None
    reader = HeadRows(head.view, factors, head.blocks)
    device = head.view.q.device
    matrix = torch.empty(head.num_tokens, head.num_tokens, dtype=torch.float64, device=device)
    for tile in row_tiles(head.view, head.num_tokens):
        matrix[tile] = reader.full(torch.arange(tile.start, tile.stop, device=device))[0]
        yield
    return matrix


def _exactly(values: Tensor, method: str, cost: str) -> Reading:
    """From all singular values: [H, n]."""
    squares = values.square()
    norm = squares.sum(1)
    shares = values / values.sum(1, keepdim=True)
    leading = torch.nn.functional.pad(values, (0, NUM_SINGULAR_VALUES))[:, :NUM_SINGULAR_VALUES]
    return Reading(
        values=floats(norm.square() / squares.square().sum(1)),
        error=None,
        method=method,
        unit=EFFECTIVE_RANK.unit,
        cost=cost,
        beside={
            "frobenius_norm": _quantity(norm.sqrt(), "dimensionless"),
            "singular_values": _quantity(leading, "dimensionless"),
            "stable_rank": _quantity(norm / squares[:, 0]),
            "entropy_rank": _quantity(torch.special.entr(shares).sum(1).exp()),
        },
    )


def _sketched(heads: HeadGroup) -> Steps[Reading]:
    mean = yield from mean_collision(heads)
    norm = mean.values * heads.num_tokens  # [H] |P|_F^2
    norm_error = torch.zeros_like(norm) if mean.error is None else mean.error * heads.num_tokens
    basis, image = yield from _leading_space(heads)
    values, off = _singular_values(basis, image)
    rest, rest_error = yield from _fourth_powers_beyond(heads, basis)
    quartic = image.square().sum((1, 2), dtype=torch.float64) + rest
    # Its range: sum s^4 is at most (sum s^2)^2, and at least an N-th of it.
    quartic = quartic.maximum(norm.square() / heads.num_tokens).minimum(norm.square())
    rank = norm.square() / quartic
    top = values[:, 0].square()
    return Reading(
        values=floats(rank),
        error=floats(rank * torch.hypot(rest_error / quartic, 2 * norm_error / norm)),
        method=f"|P|_F over |P^T P|_F, the latter in {_WIDTH} leading directions and "
        f"{_PROBES} random ones beyond; standard error",
        unit=EFFECTIVE_RANK.unit,
        cost=f"{2 * (_WIDTH * _PASSES + _PROBES)} P v",
        beside={
            "frobenius_norm": _quantity(
                norm.sqrt(),
                "dimensionless",
                None if mean.error is None else norm_error / (2 * norm.sqrt()),
            ),
            "singular_values": _quantity(values, "dimensionless", off),
            "stable_rank": _quantity(
                norm / top,
                error=torch.hypot(norm_error, 2 * norm * off[:, 0] / values[:, 0]) / top,
            ),
        },
    )


def _leading_space(heads: HeadGroup) -> Steps[tuple[Tensor, Tensor]]:
    """Orthonormal vectors near the leading right singular vectors, and P^T P times them."""
    basis = _random(heads, min(_WIDTH, heads.num_tokens), heads.effort.seed)
    operator = yield from heads.operator()
    for _ in range(_PASSES):
        basis, _ = orthonormal(basis)
        image = yield from operator.gram(basis)
        basis, last = image, basis
    return last, image


def _singular_values(basis: Tensor, image: Tensor) -> tuple[Tensor, Tensor]:
    """The leading singular values and the error of each: [H, 8] twice.

    An eigenvalue of P^T P lies within the residual r of each Ritz value t, so a singular value lies
    within r / sqrt(t) of sqrt(t).
    """
    projection = (basis.mT @ image).double()
    with one_thread():
        squares, turn = torch.linalg.eigh((projection + projection.mT) / 2)
    apart = image @ turn.to(image) - (basis @ turn.to(basis)) * squares.unsqueeze(1).to(image)
    residual = apart.norm(dim=1).double()
    values = squares.clamp_min(0.0).sqrt().flip(1)[:, :NUM_SINGULAR_VALUES]
    smallest = torch.finfo(values.dtype).eps
    off = residual.flip(1)[:, :NUM_SINGULAR_VALUES] / values.clamp_min(smallest)
    return values, off


def _fourth_powers_beyond(heads: HeadGroup, basis: Tensor) -> Steps[tuple[Tensor, Tensor]]:
    """|P^T P|_F^2 on the complement of the basis, with its standard error: [H] twice."""
    probes = _random(heads, _PROBES, heads.effort.seed + 1)
    operator = yield from heads.operator()
    image = yield from operator.gram(probes - basis @ (basis.mT @ probes))
    squares = image.square().sum(1, dtype=torch.float64)  # [H, probes]
    mean = squares.mean(1)
    factor = few_samples_factor(_PROBES) + skewness_term(squares - mean.unsqueeze(1))
    return mean, factor * squares.std(1) / _PROBES**0.5


def _random(heads: HeadGroup, columns: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randn(heads.num_tokens, columns, generator=generator, dtype=heads.dtype)
    return drawn.to(heads.view.q.device).expand(heads.num_heads, -1, -1)


def _quantity(values: Tensor, unit: str = "tokens", error: Tensor | None = None) -> Quantity:
    return Quantity(values=floats(values), unit=unit, error=error_floats(error))


EFFECTIVE_RANK = Instrument(
    name="effective_rank",
    unit="tokens",
    description="participation ratio of the squared singular values; 1 where all rows are alike. "
    "Exact for texts up to 128 tokens, in mode exact up to 4096, and where LLN alone attends; "
    "otherwise an estimate with its standard error. Beside: Frobenius norm, leading singular "
    "values, stable rank and, where all singular values are known, entropy rank.",
    measure=measure_effective_rank,
    max_softmax_tokens=4_096,
)
