# mypy: disable-error-code="no-untyped-def,untyped-decorator,import-untyped"
# Kernels are compiled by Triton: pointers, blocks and constexprs have no Python types.
"""What the backward of Diag needs of each row's softmax: log2 of its mass, and g . diag.

Where a tile holds whole blocks both stay in registers; for a block of several tiles they go
through memory, by head, so that a step reads its queries' side by side. As in the forward, a
block's sums are taken under a peak that stays, and again under one that follows the scores where
masses outgrow it.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.attention.gpu.backward_diag import score_and_gain, whole_steps
from kernels.attention.gpu.backward_state import average
from kernels.attention.gpu.forward_diag import load_sinks
from kernels.attention.gpu.forward_state import LOG2_E
from kernels.attention.gpu.locate import (
    head_and_slot,
    load_rows,
    load_whole_rows,
    locate,
)

MOST_MASS = tl.constexpr(2.0**60)
"""Under a peak that stays. Above it gains that are added up with their weights could overflow."""


@triton.jit
def first_peak(
    b_q,  # [BM, BD] queries of one block
    b_k,  # [BS, BD] the block's first keys
    m_n,  # [BS] keys that exist
    scale,  # log2(e) / sqrt(D)
    PRECISION: tl.constexpr,
):
    """The greatest score among the block's first keys, times scale: [BM]."""
    b_score = tl.dot(b_q, tl.trans(b_k), input_precision=PRECISION)
    return tl.max(tl.where(m_n[None, :], b_score, float("-inf")), 1) * scale


@triton.jit
def average_over_sinks(
    b_peak,  # [BM] Diag's running softmax
    b_mass,  # [BM]
    b_mean,  # [BM]
    b_q,  # [BM, BD] queries
    b_g,  # [BM, BD] gradients
    o_first,  # [BM] where the block of each query begins, counted from the span's first token
    p_k,  # one sequence and head's keys [length, D]
    p_v,  # the same one's values [length, D]
    i_span,  # the span's first position
    length,
    block_size,
    first_sinks,
    last_sinks,
    scale,
    stride_kt,
    stride_vt,
    D: tl.constexpr,
    BD: tl.constexpr,
    BS: tl.constexpr,
    PRECISION: tl.constexpr,
    UPCAST: tl.constexpr,
):
    """Diag's running softmax after the sinks outside the query's own block."""
    for i_s in range(0, first_sinks + last_sinks, BS):
        b_k, b_v, m_visible = load_sinks(
            i_s, o_first, p_k, p_v, i_span, length, block_size, first_sinks, last_sinks,
            stride_kt, stride_vt, D, BD, BS, UPCAST,
        )  # fmt: skip
        b_score, b_gain = score_and_gain(b_q, b_k, b_v, b_g, m_visible, True, PRECISION)
        b_peak, b_mass, b_mean = average(b_peak, b_mass, b_mean, b_score, b_gain, scale * LOG2_E)
    return b_peak, b_mass, b_mean


@triton.jit
def add_to_sums(
    b_peak,  # [BM]
    b_masses,  # [BM, BN] sums of 2 ** (score - peak) so far, of every BN-th key
    b_means,  # [BM, BN] sums of 2 ** (score - peak) gain so far, likewise
    b_q,  # [BM, BD] queries
    b_g,  # [BM, BD] gradients
    b_k,  # [BN, BD] keys
    b_v,  # [BN, BD] values
    m_n,  # [1, BN] keys that exist; unused unless HIDES
    scale,  # log2(e) / sqrt(D)
    HIDES: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """One step under the peak."""
    b_score, b_gain = score_and_gain(b_q, b_k, b_v, b_g, m_n, HIDES, PRECISION)
    b_weight = tl.exp2(b_score * scale - b_peak[:, None])
    return b_masses + b_weight, b_means + b_weight * b_gain


@triton.jit
def sum_under_peak(
    b_peak,  # [BM]
    b_q,  # [BM, BD] queries
    b_g,  # [BM, BD] gradients
    p_k,  # the block's keys [num_keys, D]
    p_v,  # the block's values [num_keys, D]
    num_keys,
    scale,  # log2(e) / sqrt(D)
    stride_kt,
    stride_vt,
    D: tl.constexpr,
    BD: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    PRECISION: tl.constexpr,
    UPCAST: tl.constexpr,
):
    """Mass and weighted sum of gains of a block under a peak that stays, [BM] each.

    Sums go across threads once, at the end.
    """
    b_masses = tl.zeros([BM, BN], tl.float32)
    b_means = tl.zeros([BM, BN], tl.float32)
    o_n = tl.arange(0, BN)
    p_k_rows = p_k + o_n[:, None] * stride_kt
    p_v_rows = p_v + o_n[:, None] * stride_vt
    num_steps = whole_steps(num_keys, BD, BN)
    for i_n in range(num_steps):  # noqa: B007
        b_k = load_whole_rows(p_k_rows, D, BD, UPCAST)
        b_v = load_whole_rows(p_v_rows, D, BD, UPCAST)
        b_masses, b_means = add_to_sums(
            b_peak, b_masses, b_means, b_q, b_g, b_k, b_v, None, scale, False, PRECISION
        )
        p_k_rows += BN * stride_kt
        p_v_rows += BN * stride_vt
    for i_rest in range(num_steps * BN, num_keys, BN):
        m_n = o_n < num_keys - i_rest
        b_k = load_rows(p_k_rows, m_n, D, BD, UPCAST)
        b_v = load_rows(p_v_rows, m_n, D, BD, UPCAST)
        b_masses, b_means = add_to_sums(
            b_peak, b_masses, b_means, b_q, b_g, b_k, b_v, m_n[None, :], scale, True, PRECISION
        )
        p_k_rows += BN * stride_kt
        p_v_rows += BN * stride_vt
    return tl.sum(b_masses, 1), tl.sum(b_means, 1)


@triton.jit
def sum_under_peaks(
    b_q,  # [BM, BD] queries
    b_g,  # [BM, BD] gradients
    p_k,  # the block's keys [num_keys, D]
    p_v,  # the block's values [num_keys, D]
    num_keys,
    scale,  # log2(e) / sqrt(D)
    stride_kt,
    stride_vt,
    D: tl.constexpr,
    BD: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    PRECISION: tl.constexpr,
    UPCAST: tl.constexpr,
):
    """Peak, mass and weighted sum of gains of a block under a peak that follows the scores."""
    b_peak = tl.full([BM], float("-inf"), tl.float32)
    b_mass = tl.zeros([BM], tl.float32)
    b_mean = tl.zeros([BM], tl.float32)
    for i_n in range(0, num_keys, BN):
        o_n = i_n + tl.arange(0, BN).to(tl.int64)  # a whole sequence may be the block
        m_n = o_n < num_keys
        b_k = load_rows(p_k + o_n[:, None] * stride_kt, m_n, D, BD, UPCAST)
        b_v = load_rows(p_v + o_n[:, None] * stride_vt, m_n, D, BD, UPCAST)
        b_score, b_gain = score_and_gain(b_q, b_k, b_v, b_g, m_n[None, :], True, PRECISION)
        b_peak, b_mass, b_mean = average(b_peak, b_mass, b_mean, b_score, b_gain, scale)
    return b_peak, b_mass, b_mean


@triton.jit(
    do_not_specialize=[
        "p_mix", "p_cu_seqlens", "num_rows", "num_sequences", "num_heads", "first_sinks",
        "last_sinks", "stride_mix_t", "stride_mix_h",
    ]
)  # fmt: skip
def diag_rows_kernel(
    p_q,  # queries [T, H, D]
    p_k,  # keys [T, H, D]
    p_v,  # values [T, H, D]
    p_g,  # gradient of the output [T, H, D]
    p_mix,  # LLN's share, float32 [T, H] by its strides; unused without LLN
    p_sums,  # out: log2 of each row's mass; g . diag times scale; Diag's share: float32 [3, H, T]
    p_cu_seqlens,  # first packed row of every sequence, then T, int32 [B + 1]
    num_rows,
    num_sequences,
    num_heads,
    first_sinks,
    last_sinks,
    scale,
    stride_qt,
    stride_qh,
    stride_kt,
    stride_kh,
    stride_vt,
    stride_vh,
    stride_gt,
    stride_gh,
    stride_mix_t,
    stride_mix_h,
    D: tl.constexpr,
    BD: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BS: tl.constexpr,
    BLOCK: tl.constexpr,
    SPAN: tl.constexpr,
    TILES: tl.constexpr,
    ROWS: tl.constexpr,
    LLN: tl.constexpr,
    SINKS: tl.constexpr,
    PRECISION: tl.constexpr,
    UPCAST: tl.constexpr,
):
    """Numbers of a row, which the keys of a block of several tiles need of its queries."""
    i_h, i_slot = head_and_slot()
    _, i_begin, length, i_tile = locate(p_cu_seqlens, i_slot, num_sequences, SPAN, TILES, ROWS)
    i_h, i_begin = i_h.to(tl.int64), i_begin.to(tl.int64)
    i_span = (i_tile // TILES).to(tl.int64) * SPAN
    i_span_end = tl.minimum(i_span + SPAN, length)
    i_m = i_span + i_tile % TILES * ROWS
    if i_m >= i_span_end:
        return

    o_m = tl.arange(0, BM)
    m_m = o_m < tl.minimum(ROWS, i_span_end - i_m)
    i_row = i_begin + i_m
    b_q = load_rows(p_q + i_h * stride_qh + (i_row + o_m[:, None]) * stride_qt, m_m, D, BD, UPCAST)
    b_g = load_rows(p_g + i_h * stride_gh + (i_row + o_m[:, None]) * stride_gt, m_m, D, BD, UPCAST)
    p_k += i_h * stride_kh + i_begin * stride_kt
    p_v += i_h * stride_vh + i_begin * stride_vt
    num_keys = (i_span_end - i_span).to(tl.int32)
    p_block_k = p_k + i_span * stride_kt
    p_block_v = p_v + i_span * stride_vt
    o_n = tl.arange(0, BS)
    b_k = load_rows(p_block_k + o_n[:, None] * stride_kt, o_n < num_keys, D, BD, UPCAST)
    b_peak = first_peak(b_q, b_k, o_n < num_keys, scale * LOG2_E, PRECISION)
    b_mass, b_mean = sum_under_peak(
        b_peak, b_q, b_g, p_block_k, p_block_v, num_keys, scale * LOG2_E, stride_kt, stride_vt,
        D, BD, BM, BN, PRECISION, UPCAST,
    )  # fmt: skip
    overflows = tl.sum(tl.where(b_mass < MOST_MASS, 0, 1), 0) > 0  # or is not a number
    if overflows:
        b_peak, b_mass, b_mean = sum_under_peaks(
            b_q, b_g, p_block_k, p_block_v, num_keys, scale * LOG2_E, stride_kt, stride_vt,
            D, BD, BM, BN, PRECISION, UPCAST,
        )  # fmt: skip
    if SINKS:
        b_peak, b_mass, b_mean = average_over_sinks(
            b_peak, b_mass, b_mean, b_q, b_g, tl.zeros([BM], tl.int32), p_k, p_v, i_span, length,
            BLOCK, first_sinks, last_sinks, scale, stride_kt, stride_vt,
            D, BD, BS, PRECISION, UPCAST,
        )  # fmt: skip
    stride_sums = num_heads.to(tl.int64) * num_rows
    p_row_sums = p_sums + i_h * num_rows + i_row + o_m
    tl.store(p_row_sums, b_peak + tl.log2(b_mass), mask=m_m)
    tl.store(p_row_sums + stride_sums, b_mean / b_mass * scale, mask=m_m)
    if LLN:
        p_mix += i_h * stride_mix_h + i_row * stride_mix_t
        b_mix = tl.load(p_mix + o_m * stride_mix_t, mask=m_m, other=0.0)
        tl.store(p_row_sums + 2 * stride_sums, 1.0 - b_mix, mask=m_m)
