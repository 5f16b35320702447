"""Random matrices that claims are checked on, all in float64."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.autograd.functional
from torch import Generator, Tensor

from engine.diagnostics.dense import softmax_matrix


def gaussian(generator: Generator, *shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=generator)


def random_attention(generator: Generator, length: int, dim: int, spread: float = 1.0) -> Tensor:
    """A softmax pattern of Gaussian queries and keys whose scores have this standard deviation."""
    scale = math.sqrt(spread)
    return softmax_matrix(
        scale * gaussian(generator, length, dim), scale * gaussian(generator, length, dim)
    )


def gaussian_heads(
    generator: Generator, length: int, dim: int, score_variance: float
) -> tuple[Tensor, Tensor]:
    """Queries and keys [N, D] of the LLN paper's model, sigma_q = sigma_k."""
    sigma = score_variance**0.25
    return sigma * gaussian(generator, length, dim), sigma * gaussian(generator, length, dim)


def jacobian(function: Callable[[Tensor], Tensor], at: Tensor) -> Tensor:
    """By autograd: [*shape of the function's value, *shape of its argument]."""
    found: Tensor = torch.autograd.functional.jacobian(function, at)  # type: ignore[no-untyped-call]
    return found


def covariance(weights: Tensor) -> Tensor:
    """diag(a) - a a^T: [..., n, n] of distributions [..., n]."""
    return torch.diag_embed(weights) - weights.unsqueeze(-1) * weights.unsqueeze(-2)


def cosine(one: Tensor, other: Tensor) -> float:
    return float((one * other).sum() / (one.norm() * other.norm()))
