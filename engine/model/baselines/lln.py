"""LLN attention as in the paper, with fixed alpha and beta: its figure 9 finds both near 2."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from kernels.attention import PackedSequences, lln_attention
from kernels.attention.reference import lln_matrix


@dataclass(frozen=True)
class LLN:
    alpha: float = 2.0
    beta: float = 2.0
    name: str = "lln"

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, packed: PackedSequences) -> Tensor:
        return lln_attention(q, k, v, alpha=self.alpha, beta=self.beta, cu_seqlens=packed)

    def matrix(self, q: Tensor, k: Tensor) -> Tensor:
        return lln_matrix(self.alpha * q.double(), self.beta * k.double())


LLN_ATTENTION = LLN()
