# mypy: disable-error-code="no-untyped-def,untyped-decorator,import-untyped"
# Kernels are compiled by Triton: pointers, blocks and constexprs have no Python types.
"""Sums of rows and of their outer products, relative to each sequence's first row.

A spread that is small beside its mean would be lost in a plain sum of squares.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.attention.triton_slots import locate


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
    i_program = tl.program_id(0).to(tl.int64)
    i_c = i_program % NC
    i_h = i_program // NC % num_heads
    i_slot = i_program // NC // num_heads
    i_b, i_begin, length, i_piece = locate(p_cu_seqlens, i_slot, num_sequences, PIECE, 1)
    if (i_piece > 0) & (i_piece * PIECE >= length):
        return

    o_d = tl.arange(0, BD)
    o_c = i_c * BC + tl.arange(0, BC)
    m_d = o_d < D
    m_c = o_c < D
    p_x += i_h * stride_xh + i_begin * stride_xt
    # An empty sequence has no first row.
    b_first = tl.load(p_x + o_d, mask=m_d & (length > 0), other=0.0).to(tl.float32)
    b_first_c = tl.load(p_x + o_c, mask=m_c & (length > 0), other=0.0).to(tl.float32)
    p_x += i_piece * PIECE * stride_xt
    num_tokens = tl.minimum(length - i_piece * PIECE, PIECE).to(tl.int32)
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
