# mypy: disable-error-code="no-untyped-def,untyped-decorator,import-untyped"
# Kernels are compiled by Triton: pointers, blocks and constexprs have no Python types.
"""The backward of Diag through queries and keys: weights recomputed, gradients passed on.

The sums of each row's softmax, which they need, are those of `.backward_sums`.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.attention.gpu.forward_state import LOG2_E
from kernels.attention.gpu.locate import load_rows, load_whole_rows, sinks_outside


@triton.jit
def score_and_gain(b_q, b_k, b_v, b_g, m_visible, HIDES: tl.constexpr, PRECISION: tl.constexpr):
    """Diag's scores, -inf where hidden, and the gradient of its weights: [queries, keys]."""
    b_score = tl.dot(b_q, tl.trans(b_k), input_precision=PRECISION)
    if HIDES:
        b_score = tl.where(m_visible, b_score, float("-inf"))
    return b_score, tl.dot(b_g, tl.trans(b_v), input_precision=PRECISION)


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
    b_q, b_k, b_g,  # [BM, BD] rows of whole blocks
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
