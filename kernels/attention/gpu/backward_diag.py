# mypy: disable-error-code="no-untyped-def,untyped-decorator,import-untyped"
# Kernels are compiled by Triton: pointers, blocks and constexprs have no Python types.
"""The backward of Diag: block softmax with sinks, its weights recomputed from queries and keys.

The backward needs two numbers of a row's softmax: log2 of its mass, and g . diag. Where a tile
holds whole blocks they stay in registers; for a block of several tiles they go through memory.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.attention.gpu.backward_state import average
from kernels.attention.gpu.forward_state import LOG2_E
from kernels.attention.gpu.locate import head_and_slot, load_rows, locate, sinks_outside


@triton.jit
def score_and_gain(b_q, b_k, b_v, b_g, m_visible, scale, PRECISION: tl.constexpr):
    """Diag's scores, -inf where hidden, and the gradient of its weights: [queries, keys]."""
    b_score = tl.dot(b_q, tl.trans(b_k), input_precision=PRECISION) * (scale * LOG2_E)
    b_gain = tl.dot(b_g, tl.trans(b_v), input_precision=PRECISION)
    return tl.where(m_visible, b_score, float("-inf")), b_gain


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
        b_score, b_gain = score_and_gain(b_q, b_k, b_v, b_g, m_visible, scale, PRECISION)
        b_peak, b_mass, b_mean = average(b_peak, b_mass, b_mean, b_score, b_gain)
    return b_peak, b_mass, b_mean


@triton.jit
def through_sinks(
    b_dq,  # [BM, BD] the queries' gradient so far
    b_q,  # [BM, BD] queries
    b_g,  # [BM, BD] gradients
    b_log_sum,  # [BM] log2 of each row's mass
    b_mean,  # [BM] g . diag
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
        b_score, b_gain = score_and_gain(b_q, b_k, b_v, b_g, m_visible, scale, PRECISION)
        b_weight = tl.exp2(b_score - b_log_sum[:, None]) * b_share[:, None]
        b_ds = (b_weight * (b_gain - b_mean[:, None]) * scale).to(b_q.dtype)
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
    b_mean,  # [BM] g . diag
    b_share,  # [BM] Diag's share
    b_dv,  # [BM, BD] the values' gradient so far
    scale,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Gradients of queries, keys and values where one tile holds whole blocks."""
    b_weight = tl.exp2(b_score - b_log_sum[:, None]) * b_share[:, None]
    b_ds = (b_weight * (b_gain - b_mean[:, None]) * scale).to(b_q.dtype)
    b_dq = tl.dot(b_ds, b_k, input_precision=PRECISION)
    b_dk = tl.dot(tl.trans(b_ds), b_q, input_precision=PRECISION)
    b_dv = tl.dot(tl.trans(b_weight.to(b_g.dtype)), b_g, b_dv, input_precision=PRECISION)
    return b_dq, b_dk, b_dv


@triton.jit
def through_block_as_queries(
    b_q,  # [BM, BD] queries
    b_g,  # [BM, BD] gradients
    b_log_sum,  # [BM] log2 of each row's mass
    b_mean,  # [BM] g . diag
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
    for i_n in range(0, num_keys, BN):
        o_n = i_n + tl.arange(0, BN).to(tl.int64)  # a whole sequence may be the block
        m_n = o_n < num_keys
        b_k = load_rows(p_k + o_n[:, None] * stride_kt, m_n, D, BD, UPCAST)
        b_v = load_rows(p_v + o_n[:, None] * stride_vt, m_n, D, BD, UPCAST)
        b_score, b_gain = score_and_gain(b_q, b_k, b_v, b_g, m_n[None, :], scale, PRECISION)
        b_weight = tl.exp2(b_score - b_log_sum[:, None]) * b_share[:, None]
        b_ds = b_weight * (b_gain - b_mean[:, None]) * scale
        b_dq = tl.dot(b_ds.to(b_k.dtype), b_k, b_dq, input_precision=PRECISION)
    return b_dq


@triton.jit
def through_block_as_keys(
    b_k,  # [BM, BD] keys
    b_v,  # [BM, BD] values
    b_dv,  # [BM, BD] the values' gradient so far
    p_q,  # the block's queries [num_queries, D]
    p_g,  # the block's gradients [num_queries, D]
    p_log_sum,  # log2 of each query's mass, float32 [num_queries, H]
    p_mean,  # g . diag of each query, float32 [num_queries, H]
    p_mix,  # LLN's share by query; unused without LLN
    num_queries,
    num_heads,
    scale,
    stride_qt,
    stride_gt,
    stride_mix_t,
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
    for i_n in range(0, num_queries, BN):
        o_n = i_n + tl.arange(0, BN).to(tl.int64)
        m_n = o_n < num_queries
        b_q = load_rows(p_q + o_n[:, None] * stride_qt, m_n, D, BD, UPCAST)
        b_g = load_rows(p_g + o_n[:, None] * stride_gt, m_n, D, BD, UPCAST)
        b_log_sum = tl.load(p_log_sum + o_n * num_heads, mask=m_n, other=0.0)
        b_mean = tl.load(p_mean + o_n * num_heads, mask=m_n, other=0.0)
        # Keys are the rows here, so that what they gather needs no transposing.
        b_score, b_gain = score_and_gain(b_k, b_q, b_g, b_v, m_n[None, :], scale, PRECISION)
        b_weight = tl.exp2(b_score - b_log_sum[None, :])
        if LLN:
            b_mix = tl.load(p_mix + o_n * stride_mix_t, mask=m_n, other=0.0)
            b_weight *= (1.0 - b_mix)[None, :]
        b_ds = b_weight * (b_gain - b_mean[None, :]) * scale
        b_dk = tl.dot(b_ds.to(b_q.dtype), b_q, b_dk, input_precision=PRECISION)
        b_dv = tl.dot(b_weight.to(b_g.dtype), b_g, b_dv, input_precision=PRECISION)
    return b_dk, b_dv


@triton.jit(
    do_not_specialize=[
        "p_cu_seqlens", "num_sequences", "num_heads", "first_sinks", "last_sinks",
    ]
)  # fmt: skip
def diag_rows_kernel(
    p_q,  # queries [T, H, D]
    p_k,  # keys [T, H, D]
    p_v,  # values [T, H, D]
    p_g,  # gradient of the output [T, H, D]
    p_log_sum,  # out: log2 of each row's mass, float32 [T, H]
    p_mean,  # out: g . diag, float32 [T, H]
    p_cu_seqlens,  # first packed row of every sequence, then T, int32 [B + 1]
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
    D: tl.constexpr,
    BD: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BS: tl.constexpr,
    BLOCK: tl.constexpr,
    SPAN: tl.constexpr,
    TILES: tl.constexpr,
    ROWS: tl.constexpr,
    SINKS: tl.constexpr,
    PRECISION: tl.constexpr,
    UPCAST: tl.constexpr,
):
    """Two numbers a row, which the keys of a block of several tiles need of its queries."""
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
    b_peak = tl.full([BM], float("-inf"), tl.float32)
    b_mass = tl.zeros([BM], tl.float32)
    b_mean = tl.zeros([BM], tl.float32)
    num_keys = (i_span_end - i_span).to(tl.int32)
    for i_n in range(0, num_keys, BN):
        o_n = i_n + tl.arange(0, BN)
        m_n = o_n < num_keys
        b_k = load_rows(p_k + (i_span + o_n[:, None]) * stride_kt, m_n, D, BD, UPCAST)
        b_v = load_rows(p_v + (i_span + o_n[:, None]) * stride_vt, m_n, D, BD, UPCAST)
        b_score, b_gain = score_and_gain(b_q, b_k, b_v, b_g, m_n[None, :], scale, PRECISION)
        b_peak, b_mass, b_mean = average(b_peak, b_mass, b_mean, b_score, b_gain)
    if SINKS:
        b_peak, b_mass, b_mean = average_over_sinks(
            b_peak, b_mass, b_mean, b_q, b_g, tl.zeros([BM], tl.int32), p_k, p_v, i_span, length,
            BLOCK, first_sinks, last_sinks, scale, stride_kt, stride_vt,
            D, BD, BS, PRECISION, UPCAST,
        )  # fmt: skip
    o_rows = (i_row + o_m) * num_heads + i_h
    tl.store(p_log_sum + o_rows, b_peak + tl.log2(b_mass), mask=m_m)
    tl.store(p_mean + o_rows, b_mean / b_mass, mask=m_m)
