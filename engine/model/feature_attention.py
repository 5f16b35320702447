"""Linear attentions by a map of rows to non-negative features: elu, cosFormer, Performer.

Each is a `Baseline` of `engine.model.baselines`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor
from torch.nn import functional as F

from engine.model.by_sequence import by_sequence
from kernels.attention import PackedSequences

FeatureMap = Callable[[Tensor], Tensor]
"""Maps one sequence's rows [N, H, D] to non-negative features [N, H, F]."""


@dataclass(frozen=True)
class FeatureAttention:
    """Linear attention by a feature map: P_ij proportional to phi(q_i) . phi(k_j).

    A query that shares no feature with any key attends to all keys equally.
    """

    name: str
    features: FeatureMap

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, packed: PackedSequences) -> Tensor:
        return by_sequence(self._attend, q, k, v, packed)

    def matrix(self, q: Tensor, k: Tensor) -> Tensor:
        fq, fk = self.features(q.double()), self.features(k.double())
        kernel = torch.einsum("ihf,jhf->hij", fq, fk)
        mass = kernel.sum(-1, keepdim=True)
        return torch.where(mass > 0, kernel / _nonzero(mass), 1 / len(k))

    def _attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        fq, fk = self.features(q), self.features(k)
        fk = fk / _nonzero(
            fk.amax((0, 2), keepdim=True)
        )  # cancels out, and keeps the sums in range
        state = torch.einsum("jhf,jhd->hfd", fk, v)
        mass = torch.einsum("ihf,hf->ih", fq, fk.sum(0)).unsqueeze(-1)
        read = torch.einsum("ihf,hfd->ihd", fq, state)
        return torch.where(mass > 0, read / _nonzero(mass), v.mean(0))


def _nonzero(mass: Tensor) -> Tensor:
    """The mass, or 1 where it is 0: those quotients are unused, but need finite gradients."""
    return torch.where(mass > 0, mass, 1)


def _elu_features(rows: Tensor) -> Tensor:
    """Katharopoulos et al., "Transformers are RNNs" (2020): phi(x) = elu(x) + 1."""
    return F.elu(rows) + 1


def _cosformer_features(rows: Tensor) -> Tensor:
    """Qin et al., "cosFormer" (2022): relu features, weighted by cos(pi/2 (i - j) / N).

    cos(a - b) = cos a cos b + sin a sin b turns the weight into twice as many features.
    """
    position = torch.arange(1, len(rows) + 1, dtype=rows.dtype, device=rows.device)
    angle = (math.pi / 2 * position / len(rows))[:, None, None]
    positive = rows.relu()
    return torch.cat([positive * angle.cos(), positive * angle.sin()], dim=-1)


ELU = FeatureAttention("elu", _elu_features)
RELU = FeatureAttention("relu", lambda rows: rows.relu())  # unaffected by the scale of x
# The linear-time counterpart of the kernel (q . k)^2, element by element.
QUADRATIC = FeatureAttention("quadratic", lambda rows: rows.square())
COSFORMER = FeatureAttention("cosformer", _cosformer_features)


@dataclass(frozen=True)
class Performer:
    """Choromanski et al., "Rethinking Attention with Performers" (2021): FAVOR+ positive features.

    phi(x) = exp(w_c . x - |x|^2 / 2) of x = q / D^(1/4), w_c orthogonal Gaussian directions. Then
    phi(q) . phi(k) / F estimates exp(q . k / sqrt(D)) without bias. Like LLN's, these features are
    exponentials, and are read through log sums by channel, which cannot overflow.
    """

    num_features: int = 256
    seed: int = 0
    name: str = "performer"

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, packed: PackedSequences) -> Tensor:
        return by_sequence(self._attend, q, k, v, packed)

    def matrix(self, q: Tensor, k: Tensor) -> Tensor:
        fq, fk = (self._exponents(rows.double()) for rows in (q, k))
        fq, fk = fq - fq.amax(-1, keepdim=True), fk - fk.amax((0, 2), keepdim=True)
        kernel = torch.einsum("ihf,jhf->hij", fq.exp(), fk.exp())
        matrix: Tensor = kernel / kernel.sum(-1, keepdim=True)
        return matrix

    def _attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        exponents = self._exponents(k)
        choice = (self._exponents(q) + exponents.logsumexp(0)).softmax(-1)  # [N, H, F]
        value = torch.einsum("jhf,jhd->hfd", exponents.softmax(0), v)
        return torch.einsum("ihf,hfd->ihd", choice, value)

    def _exponents(self, rows: Tensor) -> Tensor:
        scaled = rows * rows.shape[-1] ** -0.25
        directions = orthogonal_directions(self.num_features, rows.shape[-1], self.seed)
        norm = scaled.square().sum(-1, keepdim=True) / 2
        exponents: Tensor = scaled @ directions.to(scaled).mT - norm
        return exponents


@cache
def orthogonal_directions(count: int, dim: int, seed: int) -> Tensor:
    """Gaussian directions, orthogonal within each group of `dim`: [count, dim]."""
    generator = torch.Generator().manual_seed(seed)
    blocks = []
    for _ in range(-(-count // dim)):
        square = torch.randn(dim, dim, dtype=torch.float64, generator=generator)
        norms = torch.randn(dim, dim, dtype=torch.float64, generator=generator).norm(dim=1)
        blocks.append(torch.linalg.qr(square).Q.mT * norms[:, None])
    return torch.cat(blocks)[:count]


PERFORMER = Performer()
