# mypy: disable-error-code="no-untyped-def,untyped-decorator,import-untyped"
# Kernels are compiled by Triton: pointers, blocks and constexprs have no Python types.
"""The backward of Diag: block softmax with sinks, its weights recomputed from queries and keys.

The backward needs two numbers of a row's softmax: log2 of its mass, and g . diag. Where a tile
holds whole blocks they stay in registers; for a block of several tiles they go through memory, by
head, so that a step reads its queries' side by side. As in the forward, a block's sums are taken
under a peak that stays, and again under one that follows the scores where masses outgrow it.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.attention.gpu.backward_state import average
from kernels.attention.gpu.forward_block import first_peak
from kernels.attention.gpu.forward_state import LOG2_E
from kernels.attention.gpu.locate import (
    head_and_slot,
    load_rows,
    load_whole_rows,
    locate,
    sinks_outside,
)

MOST_MASS = tl.constexpr(2.0**60)
"""Under a peak that stays. Above it gains that are added up with their weights could overflow."""


@triton.jit
def score_and_gain(b_q, b_k, b_v, b_g, m_visible, HIDES: tl.constexpr, PRECISION: tl.constexpr):
    """Diag's scores, -inf where hidden, and the gradient of its weights: [queries, keys]."""
    b_score = tl.dot(b_q, tl.trans(b_k), input_precision=PRECISION)
    if HIDES:
        b_score = tl.where(m_visible, b_score, float("-inf"))
    return b_score, tl.dot(b_g, tl.trans(b_v), input_precision=PRECISION)


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
        o_n, m_n, m_visible = sinks_outside(
            i_s + tl.arange(0, BS), o_first, i_span, length, block_size, first_sinks, last_sinks
        )
        b_k = load_rows(p_k + o_n[:, None] * stride_kt, m_n, D, BD, UPCAST)
        b_v = load_rows(p_v + o_n[:, None] * stride_vt, m_n, D, BD, UPCAST)
        b_score, b_gain = score_and_gain(b_q, b_k, b_v, b_g, m_visible, True, PRECISION)
        b_peak, b_mass, b_mean = average(b_peak, b_mass, b_mean, b_score, b_gain, scale * LOG2_E)
    return b_peak, b_mass, b_mean


@triton.jit
def through_sinks(
    b_dq,  # [BM, BD] the queries' gradient so far
    b_q,  # [BM, BD] queries
    b_g,  # [BM, BD] gradients
    b_log_sum,  # [BM] log2 of each row's mass
    b_mean,  # [BM] g . diag, times scale
    b_share,  # [BM] Diag's share
    o_first,  # [BM] where the block of each query begins, counted from the span's first token
    p_k,  # one sequence and head's keys [length, D]
    p_v,  # the same one's values [length, D]
    p_sink_k,  # out: what this tile adds to the sinks' keys, float32 [sinks, D]
    p_sink_v,  # out: and to their values, float32 [sinks, D]
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
    """The queries' gradient through the sinks outside their block; the sinks' own, to be added."""
    o_d = tl.arange(0, BD)
    for i_s in range(0, first_sinks + last_sinks, BS):
        o_s = i_s + tl.arange(0, BS)
        o_n, m_n, m_visible = sinks_outside(
            o_s, o_first, i_span, length, block_size, first_sinks, last_sinks
        )
        b_k = load_rows(p_k + o_n[:, None] * stride_kt, m_n, D, BD, UPCAST)
        b_v = load_rows(p_v + o_n[:, None] * stride_vt, m_n, D, BD, UPCAST)
        b_score, b_gain = score_and_gain(b_q, b_k, b_v, b_g, m_visible, True, PRECISION)
        b_weight = tl.exp2(b_score * (scale * LOG2_E) - b_log_sum[:, None]) * b_share[:, None]
        b_ds = (b_weight * (b_gain * scale - b_mean[:, None])).to(b_q.dtype)
        b_dq = tl.dot(b_ds, b_k, b_dq, input_precision=PRECISION)
        o_entry = o_s[:, None] * D + o_d[None, :]
        m_entry = (o_s < first_sinks + last_sinks)[:, None] & (o_d < D)[None, :]
        b_dk = tl.dot(tl.trans(b_ds), b_q, input_precision=PRECISION)
        b_dv = tl.dot(tl.trans(b_weight.to(b_g.dtype)), b_g, input_precision=PRECISION)
        tl.store(p_sink_k + o_entry, b_dk, mask=m_entry)
        tl.store(p_sink_v + o_entry, b_dv, mask=m_entry)
    return b_dq


@triton.jit
def through_own_rows(
    b_q, b_k, b_v, b_g,  # [BM, BD] rows of whole blocks
    b_score,  # [BM, BM] scores, -inf where hidden
    b_gain,  # [BM, BM] gradient of the weights
    b_log_sum,  # [BM] log2 of each row's mass
    b_mean,  # [BM] g . diag, times scale
    b_share,  # [BM] Diag's share
    b_dv,  # [BM, BD] the values' gradient so far
    scale,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Gradients of queries, keys and values where one tile holds whole blocks."""
    b_weight = tl.exp2(b_score * (scale * LOG2_E) - b_log_sum[:, None]) * b_share[:, None]
    b_ds = (b_weight * (b_gain * scale - b_mean[:, None])).to(b_q.dtype)
    b_dq = tl.dot(b_ds, b_k, input_precision=PRECISION)
    b_dk = tl.dot(tl.trans(b_ds), b_q, input_precision=PRECISION)
    b_dv = tl.dot(tl.trans(b_weight.to(b_g.dtype)), b_g, b_dv, input_precision=PRECISION)
    return b_dq, b_dk, b_dv


@triton.jit
def whole_steps(num_rows, BD: tl.constexpr, BN: tl.constexpr):
    """Steps over a block that hide nothing. Registers hold no code of both kinds for wide heads."""
    return num_rows // BN if BD <= 64 else 0


@triton.jit
def add_to_queries(
    b_dq,  # [BM, BD] the queries' gradient so far, but for their shares
    b_q,  # [BM, BD] queries
    b_g,  # [BM, BD] gradients
    b_log_sum,  # [BM] log2 of each row's mass
    b_mean,  # [BM] g . diag, times scale
    b_k,  # [BN, BD] keys
    b_v,  # [BN, BD] values
    m_n,  # [1, BN] keys that exist; unused unless HIDES
    scale,
    HIDES: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """One step over a block's keys."""
    b_score, b_gain = score_and_gain(b_q, b_k, b_v, b_g, m_n, HIDES, PRECISION)
    b_weight = tl.exp2(b_score * (scale * LOG2_E) - b_log_sum[:, None])
    b_ds = b_weight * (b_gain * scale - b_mean[:, None])
    return tl.dot(b_ds.to(b_k.dtype), b_k, b_dq, input_precision=PRECISION)


@triton.jit
def through_block_as_queries(
    b_q,  # [BM, BD] queries
    b_g,  # [BM, BD] gradients
    b_log_sum,  # [BM] log2 of each row's mass
    b_mean,  # [BM] g . diag, times scale
    b_share,  # [BM] Diag's share
    p_k,  # the block's keys [num_keys, D]
    p_v,  # the block's values [num_keys, D]
    num_keys,
    scale,
    stride_kt,
    stride_vt,
    D: tl.constexpr,
    BD: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    PRECISION: tl.constexpr,
    UPCAST: tl.constexpr,
):
    """The queries' gradient through a block of several tiles."""
    b_dq = tl.zeros([BM, BD], tl.float32)
    o_n = tl.arange(0, BN)
    p_k_rows = p_k + o_n[:, None] * stride_kt
    p_v_rows = p_v + o_n[:, None] * stride_vt
    num_steps = whole_steps(num_keys, BD, BN)
    for i_n in range(num_steps):  # noqa: B007
        b_k = load_whole_rows(p_k_rows, D, BD, UPCAST)
        b_v = load_whole_rows(p_v_rows, D, BD, UPCAST)
        b_dq = add_to_queries(
            b_dq, b_q, b_g, b_log_sum, b_mean, b_k, b_v, None, scale, False, PRECISION
        )
        p_k_rows += BN * stride_kt
        p_v_rows += BN * stride_vt
    for i_rest in range(num_steps * BN, num_keys, BN):
        m_n = o_n < num_keys - i_rest
        b_k = load_rows(p_k_rows, m_n, D, BD, UPCAST)
        b_v = load_rows(p_v_rows, m_n, D, BD, UPCAST)
        b_dq = add_to_queries(
            b_dq, b_q, b_g, b_log_sum, b_mean, b_k, b_v, m_n[None, :], scale, True, PRECISION
        )
        p_k_rows += BN * stride_kt
        p_v_rows += BN * stride_vt
    return b_dq * b_share[:, None]


@triton.jit
def add_to_keys(
    b_dk,  # [BM, BD] the keys' gradient so far
    b_dv,  # [BM, BD] the values' gradient so far
    b_k,  # [BM, BD] keys
    b_v,  # [BM, BD] values
    b_q,  # [BN, BD] queries
    b_g,  # [BN, BD] gradients
    b_log_sum,  # [BN] log2 of each query's mass
    b_mean,  # [BN] g . diag, times scale
    b_share,  # [BN] Diag's share; unused without LLN
    m_n,  # [1, BN] queries that exist; unused unless HIDES
    scale,
    LLN: tl.constexpr,
    HIDES: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """One step over a block's queries."""
    # Keys are the rows here, so that what they gather needs no transposing.
    b_score, b_gain = score_and_gain(b_k, b_q, b_g, b_v, m_n, HIDES, PRECISION)
    b_weight = tl.exp2(b_score * (scale * LOG2_E) - b_log_sum[None, :])
    if LLN:
        b_weight *= b_share[None, :]
    b_ds = b_weight * (b_gain * scale - b_mean[None, :])
    b_dk = tl.dot(b_ds.to(b_q.dtype), b_q, b_dk, input_precision=PRECISION)
    b_dv = tl.dot(b_weight.to(b_g.dtype), b_g, b_dv, input_precision=PRECISION)
    return b_dk, b_dv


@triton.jit
def through_block_as_keys(
    b_k,  # [BM, BD] keys
    b_v,  # [BM, BD] values
    b_dv,  # [BM, BD] the values' gradient so far
    p_q,  # the block's queries [num_queries, D]
    p_g,  # the block's gradients [num_queries, D]
    p_log_sum,  # log2 of each query's mass, float32 [num_queries]
    p_mean,  # g . diag of each query, times scale, float32 [num_queries]
    p_share,  # Diag's share by query, float32 [num_queries]; unused without LLN
    num_queries,
    scale,
    stride_qt,
    stride_gt,
    D: tl.constexpr,
    BD: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    LLN: tl.constexpr,
    PRECISION: tl.constexpr,
    UPCAST: tl.constexpr,
):
    """The gradients of keys and values through the queries of a block of several tiles."""
    b_dk = tl.zeros([BM, BD], tl.float32)
    b_share = tl.zeros([BN], tl.float32)
    o_n = tl.arange(0, BN)
    p_q_rows = p_q + o_n[:, None] * stride_qt
    p_g_rows = p_g + o_n[:, None] * stride_gt
    num_steps = whole_steps(num_queries, BD, BN)
    for i_n in range(num_steps):  # noqa: B007
        b_q = load_whole_rows(p_q_rows, D, BD, UPCAST)
        b_g = load_whole_rows(p_g_rows, D, BD, UPCAST)
        b_log_sum = tl.load(p_log_sum + o_n)
        b_mean = tl.load(p_mean + o_n)
        if LLN:
            b_share = tl.load(p_share + o_n)
        b_dk, b_dv = add_to_keys(
            b_dk, b_dv, b_k, b_v, b_q, b_g, b_log_sum, b_mean, b_share, None, scale, LLN, False,
            PRECISION,
        )  # fmt: skip
        p_q_rows += BN * stride_qt
        p_g_rows += BN * stride_gt
        p_log_sum += BN
        p_mean += BN
        p_share += BN
    for i_rest in range(num_steps * BN, num_queries, BN):
        m_n = o_n < num_queries - i_rest
        b_q = load_rows(p_q_rows, m_n, D, BD, UPCAST)
        b_g = load_rows(p_g_rows, m_n, D, BD, UPCAST)
        b_log_sum = tl.load(p_log_sum + o_n, mask=m_n, other=0.0)
        b_mean = tl.load(p_mean + o_n, mask=m_n, other=0.0)
        if LLN:
            b_share = tl.load(p_share + o_n, mask=m_n, other=0.0)
        b_dk, b_dv = add_to_keys(
            b_dk, b_dv, b_k, b_v, b_q, b_g, b_log_sum, b_mean, b_share, m_n[None, :], scale, LLN,
            True, PRECISION,
        )  # fmt: skip
        p_q_rows += BN * stride_qt
        p_g_rows += BN * stride_gt
        p_log_sum += BN
        p_mean += BN
        p_share += BN
    return b_dk, b_dv


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
    b_peak = first_peak(
        b_q, p_block_k, num_keys, scale * LOG2_E, stride_kt, D, BD, BS, PRECISION, UPCAST
    )
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
