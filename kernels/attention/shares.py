"""LLN's share in each token's output, in torch operations: for CPUs, and for gradients."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.attention.arguments import Gate
from kernels.attention.packed_sequences import PackedSequences


def logistic(x: Tensor) -> Tensor:
    """The logistic function, computed by tanh.

    On a CPU, torch's own rounds some numbers differently where a thread's part ends, so a text's
    vector would depend on its batch in the last bit.
    """
    return (torch.tanh(x / 2) + 1) / 2


def token_shares(
    q: Tensor,  # [T, H, D]
    mix: Tensor | Gate,  # [H] or [T, H]
    mix_scale: Tensor | None,  # [] or [B]
    packed: PackedSequences,
) -> Tensor:
    """[H], or [T, H] where tokens differ."""
    shares = _chosen(q, mix) if isinstance(mix, Gate) else mix
    if mix_scale is None:
        return shares
    return shares * _of_tokens(mix_scale, packed, q.shape[0])


def _chosen(q: Tensor, gate: Gate) -> Tensor:
    # Not a matrix product, which takes ten times as long on a CPU for one row at a time.
    return logistic((q * gate.weight).sum(-1) + gate.bias)


def _of_tokens(scale: Tensor, packed: PackedSequences, num_rows: int) -> Tensor:
    """Each token's own scale [T, 1], where those of sequences differ."""
    if scale.numel() == 1:
        return scale
    lengths = packed.cu_seqlens.diff()
    return scale.repeat_interleave(lengths, output_size=num_rows).unsqueeze(1)
