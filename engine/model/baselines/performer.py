"""Choromanski et al., "Rethinking Attention with Performers" (2021): FAVOR+ positive features.

phi(x) = exp(w_c . x - |x|^2 / 2) of x = q / D^(1/4) with orthogonal Gaussian directions w_c: then
phi(q) . phi(k) / F estimates exp(q . k / sqrt(D)) without bias. Like LLN's these features are
exponentials, and like LLN's they are read through log sums by channel, which cannot overflow.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from engine.model.baselines.base import by_sequence
from kernels.attention import PackedSequences


@dataclass(frozen=True)
class Performer:
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
    """Gaussian directions, orthogonal within each D of them: [count, dim]."""
    generator = torch.Generator().manual_seed(seed)
    blocks = []
    for _ in range(-(-count // dim)):
        square = torch.randn(dim, dim, dtype=torch.float64, generator=generator)
        norms = torch.randn(dim, dim, dtype=torch.float64, generator=generator).norm(dim=1)
        blocks.append(torch.linalg.qr(square).Q.mT * norms[:, None])
    return torch.cat(blocks)[:count]


PERFORMER = Performer()
