# mypy: disable-error-code="no-untyped-def,untyped-decorator,import-untyped"
# Kernels are compiled by Triton: pointers, blocks and constexprs have no Python types.
"""Softmax over whole sequences in one launch: what LLN+Diag replaces and is compared with.

A program computes a tile of queries of one sequence and head, over all its keys. Exponentials are
powers of two: the scale is part of the one multiplication that the exponent takes.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.attention.gpu.forward_diag import accumulate
from kernels.attention.gpu.locate import head_and_slot, locate_tile


@triton.jit
def attend_to_keys(
    b_peak,  # [BM] greatest score so far, times scale
    b_mass,  # [BM] sum of 2 ** (score scale - peak) so far
    b_acc,  # [BM, BD] sum of 2 ** (score scale - peak) value so far
    b_q,  # [BM, BD] queries
    p_k_rows,  # [BN, 1] where each key begins
    p_v_rows,  # [BN, 1] where each value begins
    num_keys,  # of this step; BN unless IS_LAST
    scale,
    D: tl.constexpr,
    BD: tl.constexpr,
    BN: tl.constexpr,
    IS_LAST: tl.constexpr,
    PRECISION: tl.constexpr,
    UPCAST: tl.constexpr,
):
    """One step of an online softmax; only the last one has keys to hide."""
    o_d = tl.arange(0, BD)
    m_n = tl.arange(0, BN) < num_keys
    m_nd = (o_d < D)[None, :]
    if IS_LAST:
        m_nd = m_nd & m_n[:, None]
    b_k = tl.load(p_k_rows + o_d[None, :], mask=m_nd, other=0.0)  # [BN, BD]
    b_v = tl.load(p_v_rows + o_d[None, :], mask=m_nd, other=0.0)
    if UPCAST:
        b_k = b_k.to(tl.float32)
        b_v = b_v.to(tl.float32)
    b_score = tl.dot(b_q, tl.trans(b_k), input_precision=PRECISION)  # [BM, BN]
    if IS_LAST:
        b_score = tl.where(m_n[None, :], b_score, float("-inf"))
    return accumulate(b_peak, b_mass, b_acc, b_score, b_v, scale, PRECISION)


# A sequence's result must not depend on its batch, so nothing that varies with the batch may
# choose the code, neither by its value nor by its alignment.
@triton.jit(do_not_specialize=["p_cu_seqlens", "p_listed", "num_listed", "num_sequences"])
def softmax_kernel(
    p_q,  # queries [T, H, D]
    p_k,  # keys [T, H, D]
    p_v,  # values [T, H, D]
    p_out,  # out: [T, H, D], heads side by side
    p_cu_seqlens,  # first packed row of every sequence, then T, int32 [B + 1]
    p_listed,  # the batch's tiles as `tile_list` lists them, int32 [num_listed, 4]
    num_listed,  # 0 where there is no list
    num_sequences,
    scale,  # log2(e) / sqrt(D)
    stride_qt,
    stride_qh,
    stride_kt,
    stride_kh,
    stride_vt,
    stride_vh,
    stride_ot,
    D: tl.constexpr,
    BD: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    PRECISION: tl.constexpr,
    UPCAST: tl.constexpr,
):
    i_h, i_slot = head_and_slot()
    _, i_begin, length, i_tile = locate_tile(
        p_cu_seqlens, p_listed, num_listed, i_slot, num_sequences, BM, 1, BM
    )
    i_h, i_begin, length = i_h.to(tl.int64), i_begin.to(tl.int64), length.to(tl.int64)
    i_m = i_tile.to(tl.int64) * BM
    if i_m >= length:
        return

    o_d = tl.arange(0, BD)
    o_m = tl.arange(0, BM)
    m_md = (o_m < length - i_m)[:, None] & (o_d < D)[None, :]
    # Offsets within a tile fit in 32 bits; where the tile begins need not.
    i_row = i_begin + i_m
    p_q_rows = p_q + i_h * stride_qh + i_row * stride_qt + o_m[:, None] * stride_qt
    b_q = tl.load(p_q_rows + o_d[None, :], mask=m_md, other=0.0)  # [BM, BD]
    if UPCAST:
        b_q = b_q.to(tl.float32)
    o_n = tl.arange(0, BN)
    p_k_rows = p_k + i_h * stride_kh + i_begin * stride_kt + o_n[:, None] * stride_kt
    p_v_rows = p_v + i_h * stride_vh + i_begin * stride_vt + o_n[:, None] * stride_vt
    b_peak = tl.full([BM], float("-inf"), tl.float32)
    b_mass = tl.zeros([BM], tl.float32)
    b_acc = tl.zeros([BM, BD], tl.float32)
    num_full = length // BN * BN
    for i_n in range(0, num_full, BN):
        b_peak, b_mass, b_acc = attend_to_keys(
            b_peak, b_mass, b_acc, b_q, p_k_rows + i_n * stride_kt, p_v_rows + i_n * stride_vt,
            BN, scale, D, BD, BN, False, PRECISION, UPCAST,
        )  # fmt: skip
    if num_full < length:
        b_peak, b_mass, b_acc = attend_to_keys(
            b_peak, b_mass, b_acc, b_q, p_k_rows + num_full * stride_kt,
            p_v_rows + num_full * stride_vt, length - num_full, scale, D, BD, BN, True,
            PRECISION, UPCAST,
        )  # fmt: skip
    b_out = b_acc / b_mass[:, None]
    p_out_rows = p_out + i_row * stride_ot + i_h * D + o_m[:, None] * stride_ot
    tl.store(p_out_rows + o_d[None, :], b_out.to(p_out.dtype.element_ty), mask=m_md)
