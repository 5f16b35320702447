"""Whole attention matrices in float64, random ones too, and what can be read off them.

They take N x N numbers a head, so claims, figures and tests use them at small N only.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.autograd.functional
from torch import Generator, Tensor

from engine.diagnostics.head_view import HeadView
from engine.diagnostics.linear_algebra import eigenvalues
from engine.diagnostics.lln_diag import Blocks, lln_factors
from engine.diagnostics.rows import HeadRows, entropy_of_probabilities


def attention_matrix(view: HeadView) -> Tensor:
    """Every row of every head, in float64: [H, N, N]."""
    factors = lln_factors(view) if view.has_channels else None
    reader = HeadRows(view, factors, Blocks(view) if view.has_blocks else None)
    return reader.full(torch.arange(view.num_tokens, device=view.q.device))


def softmax_matrix(q: Tensor, k: Tensor) -> Tensor:
    """Softmax attention of one head's queries and keys [N, D]: [N, N]."""
    view = HeadView(q=q.unsqueeze(1), k=k.unsqueeze(1), attention="softmax")
    return attention_matrix(view)[0]


def lln_matrix(q: Tensor, k: Tensor, alpha: float, beta: float) -> Tensor:
    """LLN attention of one head's queries and keys [N, D]: [N, N]."""
    view = HeadView(
        q=q.unsqueeze(1),
        k=k.unsqueeze(1),
        attention="lln",
        alpha=torch.tensor([alpha], dtype=torch.float64),
        beta=torch.tensor([beta], dtype=torch.float64),
    )
    return attention_matrix(view)[0]


def mean_row_entropy(matrix: Tensor) -> Tensor:
    """The mean row entropy in nats: [...] of matrices [..., N, N]."""
    return entropy_of_probabilities(matrix).mean(-1)


def second_modulus(matrix: Tensor) -> Tensor:
    """|lambda_2|: [...] of stochastic matrices [..., N, N], N > 1."""
    return eigenvalues(matrix).abs().topk(2).values[..., 1]


def log_variance(matrix: Tensor) -> Tensor:
    """The variance of log P over all entries: [...] of matrices [..., N, N]."""
    return matrix.log().flatten(-2).var(-1)


def centred(matrix: Tensor) -> Tensor:
    """P minus its mean row. The spectral norm of this matrix bounds |lambda_2|."""
    return matrix - matrix.mean(-2, keepdim=True)


def gaussian(generator: Generator, *shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=generator)


def random_attention(generator: Generator, length: int, dim: int, spread: float = 1.0) -> Tensor:
    """Softmax of Gaussian queries and keys whose scores have a standard deviation of `spread`."""
    scale = math.sqrt(spread)
    return softmax_matrix(
        scale * gaussian(generator, length, dim), scale * gaussian(generator, length, dim)
    )


def gaussian_heads(
    generator: Generator, length: int, dim: int, score_variance: float
) -> tuple[Tensor, Tensor]:
    """Queries and keys [N, D] as the LLN paper models them, with sigma_q = sigma_k."""
    sigma = score_variance**0.25
    return sigma * gaussian(generator, length, dim), sigma * gaussian(generator, length, dim)


def jacobian(function: Callable[[Tensor], Tensor], at: Tensor) -> Tensor:
    """The Jacobian by autograd: [*shape of the function's value, *shape of its argument]."""
    found: Tensor = torch.autograd.functional.jacobian(  # type: ignore[no-untyped-call]
        function, at, vectorize=True
    )
    return found


def covariance(weights: Tensor) -> Tensor:
    """diag(a) - a a^T: [..., n, n] of distributions [..., n]."""
    return torch.diag_embed(weights) - weights.unsqueeze(-1) * weights.unsqueeze(-2)


def cosine(one: Tensor, other: Tensor) -> float:
    return float((one * other).sum() / (one.norm() * other.norm()))


def gaussian_overlap(one: float, other: float) -> float:
    """The cosine of two Gaussian kernels on a line, by quadrature."""
    x = torch.linspace(-8, 8, 20_001, dtype=torch.float64) * max(one, other)
    first, second = (torch.exp(-((x / width) ** 2) / 2) for width in (one, other))
    return float(first @ second / (first.norm() * second.norm()))
