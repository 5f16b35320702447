# mypy: disable-error-code="untyped-decorator,import-untyped"
"""A gate's shares by token with their gradient, for attention that is differentiated.

Attention's own backward takes a tensor of shares. One pass over the queries makes it, and one more
finds the gradients of queries and gate. Where no gradient is wanted the output kernel computes the
shares, and no tensor holds them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.attention.arguments import Gate
from kernels.attention.gpu.constants import Constants, precision
from kernels.attention.gpu.forward_shares import lln_shares
from kernels.attention.gpu.launch import (
    Arguments,
    launch,
    programs_by_head,
    row_arguments,
    unit_stride,
)
from kernels.attention.gpu.locate import head_and_slot, load_rows, locate, num_slots
from kernels.attention.gpu.tiles import padded_head_dim

TILE_NUMBERS = 4096
"""Numbers of the queries that one program reads."""


class GateShares(torch.autograd.Function):
    """Shares [T, H], float32."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, weight: Tensor, bias: Tensor, mix_scale: Tensor, cu_seqlens: Tensor
    ) -> Tensor:
        q, weight = unit_stride(q), weight.contiguous()
        ctx.save_for_backward(q, weight, bias, mix_scale, cu_seqlens)
        shares = q.new_empty(q.shape[:2], dtype=torch.float32)
        num_heads, head_dim = q.shape[1:]
        constants = gate_constants(head_dim, q.dtype)
        launch(
            gate_kernel,
            programs_by_head(_slots(q, cu_seqlens, constants), num_heads),
            **_arguments(q, weight, bias, mix_scale, cu_seqlens),
            p_shares=shares,
            **constants,
        )
        return shares

    @staticmethod
    def backward(ctx: Any, d_shares: Tensor) -> tuple[Tensor | None, ...]:
        q, weight, bias, mix_scale, cu_seqlens = ctx.saved_tensors
        num_heads, head_dim = q.shape[1:]
        constants = gate_constants(head_dim, q.dtype)
        slots = _slots(q, cu_seqlens, constants)
        d_q = q.new_empty(q.shape)
        # Slots without a tile are added up with the others.
        part_weight = q.new_zeros(slots, num_heads, head_dim, dtype=torch.float32)
        part_bias = q.new_zeros(slots, num_heads, dtype=torch.float32)
        launch(
            gate_gradient_kernel,
            programs_by_head(slots, num_heads),
            **_arguments(q, weight, bias, mix_scale, cu_seqlens),
            p_dshares=d_shares.contiguous(),
            p_dq=d_q,
            p_part_weight=part_weight,
            p_part_bias=part_bias,
            **constants,
        )
        return d_q, part_weight.sum(0), part_bias.sum(0), None, None


def gate_shares(q: Tensor, gate: Gate, mix_scale: Tensor | None, cu_seqlens: Tensor) -> Tensor:
    if mix_scale is None:
        mix_scale = gate.bias.new_ones(())
    apply: Callable[..., Tensor] = GateShares.apply
    return apply(q, gate.weight, gate.bias, mix_scale, cu_seqlens)


def gate_constants(head_dim: int, dtype: torch.dtype) -> Constants:
    width = padded_head_dim(head_dim)
    return {
        "D": head_dim,
        "BD": width,
        "BT": TILE_NUMBERS // width,
        "UPCAST": precision(dtype)["UPCAST"],
    }


def _slots(q: Tensor, cu_seqlens: Tensor, constants: Constants) -> int:
    tokens = constants["BT"]
    return num_slots(q.shape[0], cu_seqlens.numel() - 1, tokens, 1, tokens)


def _arguments(
    q: Tensor, weight: Tensor, bias: Tensor, mix_scale: Tensor, cu_seqlens: Tensor
) -> Arguments:
    return {
        **row_arguments(q=q),
        "p_gate": weight,
        "p_bias": bias,
        "p_mix_scale": mix_scale,
        "p_cu_seqlens": cu_seqlens,
        "num_sequences": cu_seqlens.numel() - 1,
        "stride_bias": bias.stride(0),
        "stride_mix_b": mix_scale.stride(0) if mix_scale.dim() else 0,
    }


# A sequence's result must not depend on its batch, so nothing that varies with the batch may
# choose the code, neither by its value nor by its alignment.
@triton.jit(
    do_not_specialize=[
        "p_gate", "p_bias", "p_mix_scale", "p_cu_seqlens", "num_sequences", "stride_bias",
        "stride_mix_b",
    ]
)  # fmt: skip
def gate_kernel(  # type: ignore[no-untyped-def]
    p_q,  # queries [T, H, D]
    p_gate,  # float32 [H, D]
    p_bias,  # its bias, float32 [H]
    p_mix_scale,  # factor of a sequence's shares, float32 [B]
    p_cu_seqlens,  # first packed row of every sequence, then T, int32 [B + 1]
    p_shares,  # out: float32 [T, H]
    num_sequences,
    stride_qt,
    stride_qh,
    stride_bias,
    stride_mix_b,
    D: tl.constexpr,
    BD: tl.constexpr,
    BT: tl.constexpr,
    UPCAST: tl.constexpr,
):
    i_h, i_slot = head_and_slot()
    i_b, i_begin, length, i_tile = locate(p_cu_seqlens, i_slot, num_sequences, BT, 1, BT)
    i_t = i_tile * BT
    if i_t >= length:
        return

    o_t = tl.arange(0, BT)
    m_t = o_t < length - i_t
    i_row = (i_begin + i_t).to(tl.int64)
    p_q += i_h.to(tl.int64) * stride_qh + i_row * stride_qt
    b_q = load_rows(p_q + o_t[:, None] * stride_qt, m_t, D, BD, UPCAST)
    b_share = lln_shares(
        b_q, m_t, p_bias + i_h * stride_bias, p_gate + i_h * D, p_mix_scale + i_b * stride_mix_b,
        0, D, BD, BT, True, True,
    )  # fmt: skip
    tl.store(p_shares + (i_row + o_t) * tl.num_programs(0) + i_h, b_share, mask=m_t)


@triton.jit(
    do_not_specialize=[
        "p_gate", "p_bias", "p_mix_scale", "p_cu_seqlens", "num_sequences", "stride_bias",
        "stride_mix_b",
    ]
)  # fmt: skip
def gate_gradient_kernel(  # type: ignore[no-untyped-def]
    p_q,  # queries [T, H, D]
    p_gate,  # float32 [H, D]
    p_bias,  # its bias, float32 [H]
    p_mix_scale,  # factor of a sequence's shares, float32 [B]
    p_cu_seqlens,  # first packed row of every sequence, then T, int32 [B + 1]
    p_dshares,  # gradient of the shares, float32 [T, H]
    p_dq,  # out: [T, H, D], a row's heads side by side
    p_part_weight,  # out: a tile's part of the gate's gradient, float32 [slots, H, D]
    p_part_bias,  # out: and of its bias's, float32 [slots, H]
    num_sequences,
    stride_qt,
    stride_qh,
    stride_bias,
    stride_mix_b,
    D: tl.constexpr,
    BD: tl.constexpr,
    BT: tl.constexpr,
    UPCAST: tl.constexpr,
):
    i_h, i_slot = head_and_slot()
    num_heads = tl.num_programs(0)
    i_b, i_begin, length, i_tile = locate(p_cu_seqlens, i_slot, num_sequences, BT, 1, BT)
    i_t = i_tile * BT
    if i_t >= length:
        return

    o_t = tl.arange(0, BT)
    o_d = tl.arange(0, BD)
    m_t = o_t < length - i_t
    m_d = o_d < D
    i_row = (i_begin + i_t).to(tl.int64)
    p_q += i_h.to(tl.int64) * stride_qh + i_row * stride_qt
    p_gate += i_h * D
    b_q = load_rows(p_q + o_t[:, None] * stride_qt, m_t, D, BD, UPCAST)
    b_share = lln_shares(
        b_q, m_t, p_bias + i_h * stride_bias, p_gate, p_mix_scale, 0, D, BD, BT, True, False
    )
    o_rows = (i_row + o_t) * num_heads + i_h
    b_dshare = tl.load(p_dshares + o_rows, mask=m_t, other=0.0)
    scale = tl.load(p_mix_scale + i_b * stride_mix_b)
    b_dlogit = b_dshare * scale * b_share * (1.0 - b_share)
    b_gate = tl.load(p_gate + o_d, mask=m_d, other=0.0)
    b_dq = b_dlogit[:, None] * b_gate[None, :]
    p_dq_rows = p_dq + o_rows[:, None] * D + o_d[None, :]
    tl.store(p_dq_rows, b_dq.to(p_dq.dtype.element_ty), mask=m_t[:, None] & m_d[None, :])
    o_part = i_slot.to(tl.int64) * num_heads + i_h
    b_weight = tl.sum(b_dlogit[:, None] * b_q.to(tl.float32), 0)
    tl.store(p_part_weight + o_part * D + o_d, b_weight, mask=m_d)
    tl.store(p_part_bias + o_part, tl.sum(b_dlogit, 0))
