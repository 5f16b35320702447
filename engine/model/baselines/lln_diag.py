"""LLN+Diag as in the paper: the average of LLN and softmax within blocks, without sinks."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from kernels.attention import PackedSequences, lln_diag_attention
from kernels.attention.arguments import Sinks
from kernels.attention.reference import lln_matrix, softmax_matrix, visible_keys


@dataclass(frozen=True)
class LLNDiag:
    alpha: float = 2.0
    beta: float = 2.0
    block_size: int = 64
    name: str = "lln_diag"

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, packed: PackedSequences) -> Tensor:
        return lln_diag_attention(
            *(q, k, v),
            alpha=self.alpha,
            beta=self.beta,
            cu_seqlens=packed,
            block_size=self.block_size,
        )

    def matrix(self, q: Tensor, k: Tensor) -> Tensor:
        q, k = q.double(), k.double()
        seen = visible_keys(len(q), self.block_size, Sinks(0, 0), q.device)
        return (lln_matrix(self.alpha * q, self.beta * k) + softmax_matrix(q, k, seen)) / 2


LLN_DIAG = LLNDiag()
