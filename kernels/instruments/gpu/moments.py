# mypy: disable-error-code="no-untyped-def,untyped-decorator,import-untyped"
# Kernels are compiled by Triton: pointers, blocks and constexprs have no Python types.
"""Sums of rows and of their outer products, relative to each sequence's first row.

In a plain sum of squares a spread that is small beside its mean would be lost.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.attention.gpu.launch import launch, row_arguments, unit_stride
from kernels.attention.gpu.locate import locate, num_slots
from kernels.attention.gpu.pieces import add_pieces
from kernels.attention.gpu.tiles import padded_head_dim, piece_tokens
from kernels.attention.packed_sequences import PackedSequences
from kernels.instruments.gpu.precision import PRECISION
from kernels.instruments.question import Moments


@triton.jit(do_not_specialize=["p_cu_seqlens", "num_sequences", "num_heads"])
def moments_kernel(
    p_x,  # rows [T, H, D]
    p_sums,  # out: of sequences of one piece, sum and Gram matrix, float32 [B, H, D + 1, D]
    p_part_sums,  # out: of the pieces of others, float32 [slots, H, D + 1, D]
    p_cu_seqlens,  # first packed row of every sequence, then T, int32 [B + 1]
    num_sequences,
    num_heads,
    stride_xt,
    stride_xh,
    PIECE: tl.constexpr,
    D: tl.constexpr,
    BD: tl.constexpr,
    BC: tl.constexpr,
    BT: tl.constexpr,
    PRECISION: tl.constexpr,
):
    NC: tl.constexpr = (D + BC - 1) // BC
    i_program = tl.program_id(0)
    i_c = i_program % NC
    i_h = (i_program // NC % num_heads).to(tl.int64)
    i_slot = i_program // NC // num_heads
    i_b, i_begin, length, i_piece = locate(p_cu_seqlens, i_slot, num_sequences, PIECE, 1, PIECE)
    i_slot = i_slot.to(tl.int64)
    i_first = i_piece.to(tl.int64) * PIECE
    if (i_piece > 0) & (i_first >= length):
        return

    o_d = tl.arange(0, BD)
    o_c = i_c * BC + tl.arange(0, BC)
    m_d = o_d < D
    m_c = o_c < D
    p_x += i_h * stride_xh + i_begin.to(tl.int64) * stride_xt
    # An empty sequence has no first row.
    b_first = tl.load(p_x + o_d, mask=m_d & (length > 0), other=0.0).to(tl.float32)
    b_first_c = tl.load(p_x + o_c, mask=m_c & (length > 0), other=0.0).to(tl.float32)
    p_x += i_first * stride_xt
    num_tokens = tl.minimum(length - i_first, PIECE).to(tl.int32)
    b_sum = tl.zeros([BC], tl.float32)
    b_gram = tl.zeros([BC, BD], tl.float32)
    for i_t in range(0, num_tokens, BT):
        o_t = i_t + tl.arange(0, BT)
        m_t = (o_t < num_tokens)[:, None]
        p_rows = p_x + o_t[:, None] * stride_xt
        b_x = tl.load(p_rows + o_d[None, :], mask=m_t & m_d[None, :], other=0.0).to(tl.float32)
        b_y = tl.load(p_rows + o_c[None, :], mask=m_t & m_c[None, :], other=0.0).to(tl.float32)
        b_x = tl.where(m_t, b_x - b_first[None, :], 0.0)
        b_y = tl.where(m_t, b_y - b_first_c[None, :], 0.0)
        b_sum += tl.sum(b_y, 0)
        b_gram = tl.dot(tl.trans(b_y), b_x, b_gram, input_precision=PRECISION)
    if length <= PIECE:
        p_sums += (i_b * num_heads + i_h) * (D + 1) * D
    else:
        p_sums = p_part_sums + (i_slot * num_heads + i_h) * (D + 1) * D
    tl.store(p_sums + o_c, b_sum, mask=m_c)
    p_entries = p_sums + (1 + o_c[:, None]) * D + o_d[None, :]
    tl.store(p_entries, b_gram, mask=m_c[:, None] & m_d[None, :])


def moments(x: Tensor, packed: PackedSequences) -> Moments:
    x = unit_stride(x)
    num_rows, num_heads, head_dim = x.shape
    cu_seqlens = packed.cu_seqlens
    constants = moments_constants(head_dim)
    piece = constants["PIECE"]
    slots = num_slots(num_rows, packed.count, piece, 1, piece)
    # Only a sequence of several pieces leaves any behind, and that takes more rows than a piece.
    num_parts = slots if num_rows > piece else 0
    shape = num_heads, head_dim + 1, head_dim
    sums = x.new_empty(packed.count, *shape, dtype=torch.float32)
    parts = x.new_empty(num_parts, *shape, dtype=torch.float32)
    launch(
        moments_kernel,
        slots * num_heads * triton.cdiv(head_dim, constants["BC"]),
        **row_arguments(x=x),
        p_sums=sums,
        p_part_sums=parts,
        p_cu_seqlens=cu_seqlens,
        num_sequences=packed.count,
        num_heads=num_heads,
        **constants,
    )
    if num_parts:
        add_pieces(parts, cu_seqlens, sums, piece, num_rows)
    return _about_zero(sums.double(), x, cu_seqlens)


def _about_zero(sums: Tensor, x: Tensor, cu_seqlens: Tensor) -> Moments:
    """From sums relative to a sequence's first row to the moments themselves."""
    counts = cu_seqlens.diff().double()[:, None, None]  # [B, 1, 1]
    if not x.shape[0]:
        first = sums.new_zeros(sums[:, :, 0].shape)
    else:
        # An empty sequence may begin beyond the last row.
        first = x[cu_seqlens[:-1].long().clamp(max=x.shape[0] - 1)].double()  # [B, H, D]
    total, gram = sums[:, :, 0], sums[:, :, 1:]
    offset = total / counts
    mean = first + offset
    variance = gram.diagonal(dim1=-2, dim2=-1) / counts - offset**2
    outer = first.unsqueeze(-1) * total.unsqueeze(-2)
    whole = gram + outer + outer.transpose(-1, -2)
    whole = whole + counts.unsqueeze(-1) * first.unsqueeze(-1) * first.unsqueeze(-2)
    return Moments(mean, variance, whole)


def moments_constants(head_dim: int) -> dict[str, Any]:
    """Everything the moments are compiled for."""
    width = padded_head_dim(head_dim)
    return {
        "PIECE": piece_tokens(head_dim),
        "D": head_dim,
        "BD": width,
        "BC": min(width, 64),
        "BT": 32 if width <= 128 else 16,
        "PRECISION": PRECISION,
        "num_warps": 8 if width >= 64 else 4,
        "num_stages": 2,
    }
