"""Two convex problems in the queries' weights of one attention layer, with known Fisher matrices.

A layer's tokens X and keys K are fixed, and the weights W [H, D, d] give the patterns
A = softmax(X W K^T / sqrt(d)). Both problems have their minimum at known weights and loss 0 there.

- `Quadratic`: half (W - W*)^T F (W - W*), with F the exact Fisher matrix of the patterns at W*:
  (1 / (N d)) sum_i x_i x_i^T (x) Cov_{a_i}(k).
- `Logistic`: the mean KL divergence of the patterns from those at W*. It is a multinomial logistic
  regression of the key that is attended to, so its Hessian is the Fisher matrix everywhere.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Generator, Tensor


@dataclass(frozen=True)
class AttentionLayer:
    tokens: Tensor  # [N, D]
    keys: Tensor  # [H, N, d]

    def logits(self, weights: Tensor) -> Tensor:
        """[H, N, N]"""
        return (self.tokens @ weights) @ self.keys.mT / math.sqrt(self.keys.shape[-1])

    def patterns(self, weights: Tensor, temperature: float = 1.0) -> Tensor:
        return (self.logits(weights) / temperature).softmax(-1)


class LossAndGradient(NamedTuple):
    loss: float
    gradient: Tensor  # [H, D, d]


class Problem(Protocol):
    @property
    def layer(self) -> AttentionLayer: ...

    @property
    def start(self) -> Tensor: ...

    @property
    def optimum(self) -> Tensor: ...

    def __call__(self, weights: Tensor) -> LossAndGradient: ...


@dataclass(frozen=True)
class Quadratic:
    layer: AttentionLayer
    start: Tensor
    optimum: Tensor

    def __call__(self, weights: Tensor) -> LossAndGradient:
        tokens, keys = self.layer.tokens, self.layer.keys
        queries = tokens @ (weights - self.optimum)
        patterns = self.layer.patterns(self.optimum)
        scores = queries @ keys.mT
        centred = patterns * (scores - (patterns * scores).sum(-1, keepdim=True))
        weighted = centred @ keys  # Cov_{a_i}(k) q_i, [H, N, d]
        scale = len(tokens) * keys.shape[-1]
        loss = float((queries * weighted).sum()) / (2 * scale)
        return LossAndGradient(loss, tokens.mT @ weighted / scale)


@dataclass(frozen=True)
class Logistic:
    layer: AttentionLayer
    start: Tensor
    optimum: Tensor

    def __call__(self, weights: Tensor) -> LossAndGradient:
        tokens, keys = self.layer.tokens, self.layer.keys
        wanted = self.layer.logits(self.optimum).log_softmax(-1)
        found = self.layer.logits(weights).log_softmax(-1)
        loss = float((wanted.exp() * (wanted - found)).sum()) / len(tokens)
        error = found.exp() - wanted.exp()
        scale = len(tokens) * math.sqrt(keys.shape[-1])
        return LossAndGradient(loss, tokens.mT @ (error @ keys) / scale)


PROBLEMS: dict[str, type[Quadratic] | type[Logistic]] = {
    "quadratic": Quadratic,
    "logistic": Logistic,
}


@dataclass(frozen=True, kw_only=True)
class ProblemShape:
    """As many tokens as the width: only so has the printed solve a shape that fits."""

    heads: int
    width: int
    head_dim: int
    condition: float  # the largest of the tokens' scales over the smallest
    sharpness: float  # the spread of the best weights, and so of the patterns' logits

    def draw(self, kind: str, seed: int) -> Problem:
        generator = Generator().manual_seed(seed)

        def normal(*size: int) -> Tensor:
            return torch.randn(size, generator=generator, dtype=torch.float64)

        scales = torch.logspace(0, -math.log10(self.condition), self.width, dtype=torch.float64)
        turn = torch.linalg.qr(normal(self.width, self.width)).Q
        tokens = normal(self.width, self.width) * scales @ turn
        layer = AttentionLayer(tokens, normal(self.heads, self.width, self.head_dim))
        size = (self.heads, self.width, self.head_dim)
        optimum = self.sharpness * normal(*size)
        return PROBLEMS[kind](layer, torch.zeros(size, dtype=torch.float64), optimum)
