"""Softmax attention, the yardstick."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from kernels.attention import PackedSequences, softmax_attention
from kernels.attention.reference import softmax_matrix


@dataclass(frozen=True)
class Softmax:
    name: str = "softmax"

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, packed: PackedSequences) -> Tensor:
        return softmax_attention(q, k, v, cu_seqlens=packed)

    def matrix(self, q: Tensor, k: Tensor) -> Tensor:
        return softmax_matrix(q.double(), k.double())


SOFTMAX = Softmax()
