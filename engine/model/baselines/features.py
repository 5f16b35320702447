"""Linear attention by a feature map: P_ij proportional to phi(q_i) . phi(k_j)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.model.baselines.base import by_sequence
from kernels.attention import PackedSequences

FeatureMap = Callable[[Tensor], Tensor]
"""Of one sequence's rows [N, H, D]: features [N, H, F], none negative."""


@dataclass(frozen=True)
class FeatureAttention:
    """A query none of whose features meets a key's sees all keys alike."""

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
        fk = fk / _nonzero(fk.amax((0, 2), keepdim=True))  # cancels; sums stay in range
        state = torch.einsum("jhf,jhd->hfd", fk, v)
        mass = torch.einsum("ihf,hf->ih", fq, fk.sum(0)).unsqueeze(-1)
        read = torch.einsum("ihf,hfd->ihd", fq, state)
        return torch.where(mass > 0, read / _nonzero(mass), v.mean(0))


def _nonzero(mass: Tensor) -> Tensor:
    """For a division whose other branch is taken where this was 0; its gradient stays finite."""
    return torch.where(mass > 0, mass, 1)
