"""Other attentions to compare with: softmax and published alternatives to it.

Each takes packed rows, (q, k, v, packed) -> out, and is bidirectional within each sequence. None
has parameters to learn, so all run on any checkpoint's queries and keys. `matrix` is the formula
written out densely. To add one, write it here or beside those that it resembles, and add it to
`BASELINES`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol

from torch import Tensor

from engine.errors import find_named
from engine.model.feature_attention import COSFORMER, ELU, PERFORMER, QUADRATIC, RELU
from engine.model.landmark_attention import LINFORMER, NYSTROMFORMER
from kernels.attention import (
    PackedSequences,
    block_diagonal_attention,
    lln_attention,
    lln_diag_attention,
    softmax_attention,
)
from kernels.attention.arguments import Sinks
from kernels.attention.reference import lln_matrix, softmax_matrix, visible_keys


class Baseline(Protocol):
    """An attention without parameters."""

    @property
    def name(self) -> str: ...

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, packed: PackedSequences) -> Tensor:
        """q, k, v and the result are [T, H, D]."""
        ...

    def matrix(self, q: Tensor, k: Tensor) -> Tensor:
        """The dense attention matrix of one sequence, in float64: [H, N, N]."""
        ...


@dataclass(frozen=True)
class Softmax:
    """The reference for all others."""

    name: str = "softmax"

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, packed: PackedSequences) -> Tensor:
        return softmax_attention(q, k, v, cu_seqlens=packed)

    def matrix(self, q: Tensor, k: Tensor) -> Tensor:
        return softmax_matrix(q.double(), k.double())


SOFTMAX = Softmax()


@dataclass(frozen=True)
class LLN:
    """LLN attention as in the paper, with fixed alpha and beta; its figure 9 finds both near 2."""

    alpha: float = 2.0
    beta: float = 2.0
    name: str = "lln"

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, packed: PackedSequences) -> Tensor:
        return lln_attention(q, k, v, alpha=self.alpha, beta=self.beta, cu_seqlens=packed)

    def matrix(self, q: Tensor, k: Tensor) -> Tensor:
        return lln_matrix(self.alpha * q.double(), self.beta * k.double())


LLN_ATTENTION = LLN()


@dataclass(frozen=True)
class LLNDiag:
    """LLN+Diag as in the paper: the mean of LLN and softmax within blocks, without sinks."""

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


@dataclass(frozen=True)
class BlockDiagonal:
    """Softmax within blocks alone, without sinks: what LLN+Diag is without its LLN branch."""

    block_size: int = 64
    name: str = "block_diagonal"

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, packed: PackedSequences) -> Tensor:
        return block_diagonal_attention(q, k, v, cu_seqlens=packed, block_size=self.block_size)

    def matrix(self, q: Tensor, k: Tensor) -> Tensor:
        seen = visible_keys(len(q), self.block_size, Sinks(0, 0), q.device)
        return softmax_matrix(q.double(), k.double(), seen)


BLOCK_DIAGONAL = BlockDiagonal()


BASELINES: Mapping[str, Baseline] = MappingProxyType(
    {
        one.name: one
        for one in (
            SOFTMAX,
            ELU,
            RELU,
            QUADRATIC,
            PERFORMER,
            NYSTROMFORMER,
            LINFORMER,
            COSFORMER,
            LLN_ATTENTION,
            LLN_DIAG,
            BLOCK_DIAGONAL,
        )
    }
)


def find_baseline(name: str) -> Baseline:
    return find_named("attention", name, BASELINES, param="attention")
