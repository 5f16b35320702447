"""The attention of one layer: which kind, and the numbers it was calibrated with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from engine.types import Attention
from kernels.attention import (
    block_diagonal_attention,
    lln_attention,
    lln_diag_attention,
    sliding_window_attention,
    softmax_attention,
)


@dataclass(frozen=True, kw_only=True)
class LLNParameters:
    """Frozen by calibration, so that a text's vector never depends on its neighbours."""

    alpha: Tensor  # [H]
    beta: Tensor  # [H]
    mix: Tensor  # [H]
    key_shift: Tensor  # [H, D] added to every key before LLN's exponential, as centring them wants
    block_size: int
    num_sinks: tuple[int, int]

    def on(self, device: torch.device) -> LLNParameters:
        return replace(
            self,
            alpha=self.alpha.to(device),
            beta=self.beta.to(device),
            mix=self.mix.to(device),
            key_shift=self.key_shift.to(device),
        )


@dataclass(frozen=True)
class SoftmaxAttention:
    kind: Attention = "softmax"

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, cu_seqlens: Tensor) -> Tensor:
        return softmax_attention(q, k, v, cu_seqlens=cu_seqlens)


@dataclass(frozen=True)
class SlidingWindowAttention:
    """Softmax over near keys alone, in the layers of a family that were trained so."""

    half_window: int
    kind: Literal["sliding_window"] = "sliding_window"

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, cu_seqlens: Tensor) -> Tensor:
        return sliding_window_attention(
            q, k, v, half_window=self.half_window, cu_seqlens=cu_seqlens
        )


@dataclass(frozen=True)
class LLNAttention:
    parameters: LLNParameters
    kind: Attention = "lln"

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, cu_seqlens: Tensor) -> Tensor:
        lln = self.parameters
        return lln_attention(
            *(q, k, v),
            alpha=lln.alpha,
            beta=lln.beta,
            cu_seqlens=cu_seqlens,
            k_map=(None, lln.key_shift),
        )


@dataclass(frozen=True)
class BlockDiagonalAttention:
    parameters: LLNParameters
    kind: Attention = "block_diagonal"

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, cu_seqlens: Tensor) -> Tensor:
        lln = self.parameters
        return block_diagonal_attention(
            *(q, k, v),
            cu_seqlens=cu_seqlens,
            block_size=lln.block_size,
            num_sinks=lln.num_sinks,
        )


@dataclass(frozen=True)
class LLNDiagAttention:
    """LLN for what lies beyond a query's block, softmax for what lies within.

    A sequence of one block has nothing beyond it: there Diag alone is the softmax it stands in
    for, exactly, and LLN takes no share.
    """

    parameters: LLNParameters
    kind: Attention = "lln_diag"

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, cu_seqlens: Tensor) -> Tensor:
        lln = self.parameters
        # Looked at first, since a query is nearly always shorter and waits for every operation.
        mix = None if len(q) <= lln.block_size else self.mix_of(cu_seqlens)
        if mix is None:
            return BlockDiagonalAttention(lln)(q, k, v, cu_seqlens)
        return lln_diag_attention(
            *(q, k, v),
            alpha=lln.alpha,
            beta=lln.beta,
            mix=mix,
            cu_seqlens=cu_seqlens,
            block_size=lln.block_size,
            num_sinks=lln.num_sinks,
            k_map=(None, lln.key_shift),
        )

    def mix_of(self, cu_seqlens: Tensor) -> Tensor | None:
        """LLN's share, (H,) or (T, H); None where no sequence is longer than one block."""
        lengths = cu_seqlens.diff()
        if not lengths.numel() or int(lengths.max()) <= self.parameters.block_size:
            return None
        reaches_beyond = lengths > self.parameters.block_size
        if bool((reaches_beyond | (lengths == 0)).all()):
            return self.parameters.mix
        by_token = reaches_beyond.repeat_interleave(lengths).unsqueeze(1)
        return self.parameters.mix * by_token.to(self.parameters.mix.device)


CalibratedAttention: TypeAlias = LLNAttention | BlockDiagonalAttention | LLNDiagAttention
LayerAttention: TypeAlias = SoftmaxAttention | SlidingWindowAttention | CalibratedAttention

CALIBRATED: Mapping[str, type[CalibratedAttention]] = {
    "lln": LLNAttention,
    "block_diagonal": BlockDiagonalAttention,
    "lln_diag": LLNDiagAttention,
}
KINDS: tuple[str, ...] = ("softmax", *CALIBRATED)
