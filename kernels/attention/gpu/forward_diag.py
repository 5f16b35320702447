# mypy: disable-error-code="no-untyped-def,untyped-decorator,import-untyped"
# Kernels are compiled by Triton: pointers, blocks and constexprs have no Python types.
"""An online softmax, and Diag by it: over the query's own block, then over the sinks outside it.

Exponentials are powers of two: the scale is part of the one multiplication that the exponent takes.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.attention.gpu.locate import load_rows, load_whole_rows, sinks_outside


@triton.jit
def accumulate(
    b_peak,  # [BM] greatest score so far, times scale
    b_mass,  # [BM] sum of 2 ** (score scale - peak) so far
    b_acc,  # [BM, BD] sum of 2 ** (score scale - peak) value so far
    b_score,  # [BM, BN] new scores, -inf where hidden; one in every first row is finite
    b_value,  # [BN, BD] their values
    scale,  # not negative
    PRECISION: tl.constexpr,
):
    """One step of an online softmax."""
    b_new_peak = tl.maximum(b_peak, tl.max(b_score, 1) * scale)
    b_shrink = tl.exp2(b_peak - b_new_peak)
    b_weight = tl.exp2(b_score * scale - b_new_peak[:, None])
    b_mass = b_mass * b_shrink + tl.sum(b_weight, 1)
    b_acc = tl.dot(
        b_weight.to(b_value.dtype), b_value, b_acc * b_shrink[:, None], input_precision=PRECISION
    )
    return b_new_peak, b_mass, b_acc


@triton.jit
def attend(
    b_peak,  # [BM] greatest score so far, times scale
    b_mass,  # [BM] sum of 2 ** (score scale - peak) so far
    b_acc,  # [BM, BD] sum of 2 ** (score scale - peak) value so far
    b_q,  # [BM, BD] queries
    b_k,  # [BN, BD] keys
    b_v,  # [BN, BD] values
    m_visible,  # [BM, BN] keys each query may see; unused unless HIDES
    scale,  # log2(e) / sqrt(D)
    HIDES: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """One step of Diag's softmax."""
    b_score = tl.dot(b_q, tl.trans(b_k), input_precision=PRECISION)  # [BM, BN]
    if HIDES:
        b_score = tl.where(m_visible, b_score, float("-inf"))
    return accumulate(b_peak, b_mass, b_acc, b_score, b_v, scale, PRECISION)


@triton.jit
def attend_to_tile(
    b_q,  # [BM, BD] queries
    b_k,  # [BN, BD] the keys of their blocks
    b_v,  # [BN, BD] and the values
    o_first,  # [BM] where the block of each query begins, counted from the span's first token
    num_keys,
    block_size,
    scale,
    BD: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    ONE_BLOCK: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Diag's softmax after the query's own block, where one tile holds whole blocks."""
    b_peak = tl.full([BM], float("-inf"), tl.float32)
    b_mass = tl.zeros([BM], tl.float32)
    b_acc = tl.zeros([BM, BD], tl.float32)
    o_n = tl.arange(0, BN)
    m_n = (o_n < num_keys)[None, :]
    if not ONE_BLOCK:
        o_block_n = o_n[None, :] - o_first[:, None]
        m_visible = m_n & (o_block_n >= 0) & (o_block_n < block_size)
        b_peak, b_mass, b_acc = attend(
            b_peak, b_mass, b_acc, b_q, b_k, b_v, m_visible, scale, True, PRECISION
        )
    # Only beyond a single block's last key is any hidden.
    elif num_keys < BN:
        b_peak, b_mass, b_acc = attend(
            b_peak, b_mass, b_acc, b_q, b_k, b_v, m_n, scale, True, PRECISION
        )
    else:
        b_peak, b_mass, b_acc = attend(
            b_peak, b_mass, b_acc, b_q, b_k, b_v, None, scale, False, PRECISION
        )
    return b_peak, b_mass, b_acc


@triton.jit
def attend_to_block(
    b_q,  # [BM, BD] queries of one block
    p_k,  # its keys [num_keys, D]
    p_v,  # its values [num_keys, D]
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
    """Diag's running softmax after a block of several tiles."""
    b_peak = tl.full([BM], float("-inf"), tl.float32)
    b_mass = tl.zeros([BM], tl.float32)
    b_acc = tl.zeros([BM, BD], tl.float32)
    o_n = tl.arange(0, BN)
    p_k_rows = p_k + o_n[:, None] * stride_kt
    p_v_rows = p_v + o_n[:, None] * stride_vt
    num_whole = (num_keys // BN * BN).to(tl.int64)  # a block may be a long sequence
    for i_n in range(0, num_whole, BN):
        b_k = load_whole_rows(p_k_rows + i_n * stride_kt, D, BD, UPCAST)
        b_v = load_whole_rows(p_v_rows + i_n * stride_vt, D, BD, UPCAST)
        b_peak, b_mass, b_acc = attend(
            b_peak, b_mass, b_acc, b_q, b_k, b_v, None, scale, False, PRECISION
        )
    if num_whole < num_keys:
        m_n = o_n < num_keys - num_whole
        b_k = load_rows(p_k_rows + num_whole * stride_kt, m_n, D, BD, UPCAST)
        b_v = load_rows(p_v_rows + num_whole * stride_vt, m_n, D, BD, UPCAST)
        b_peak, b_mass, b_acc = attend(
            b_peak, b_mass, b_acc, b_q, b_k, b_v, m_n[None, :], scale, True, PRECISION
        )
    return b_peak, b_mass, b_acc


@triton.jit
def attend_to_rows(
    b_peak,  # [BM] Diag's running softmax
    b_mass,  # [BM]
    b_acc,  # [BM, BD]
    b_q,  # [BM, BD] queries
    p_k,  # keys that every query sees [num_keys, D]
    p_v,  # their values [num_keys, D]
    num_keys,
    scale,
    stride,
    D: tl.constexpr,
    BD: tl.constexpr,
    BS: tl.constexpr,
    PRECISION: tl.constexpr,
    UPCAST: tl.constexpr,
):
    """Diag's running softmax after a few keys from elsewhere."""
    for i_o in range(0, num_keys, BS):
        o_n = i_o + tl.arange(0, BS)
        m_n = o_n < num_keys
        b_k = load_rows(p_k + o_n[:, None] * stride, m_n, D, BD, UPCAST)
        b_v = load_rows(p_v + o_n[:, None] * stride, m_n, D, BD, UPCAST)
        b_peak, b_mass, b_acc = attend(
            b_peak, b_mass, b_acc, b_q, b_k, b_v, m_n[None, :], scale, True, PRECISION
        )
    return b_peak, b_mass, b_acc


@triton.jit
def load_sinks(
    i_s,  # the first of these sinks
    o_first,  # [BM] where the block of each query begins, counted from the span's first token
    p_k,  # one sequence and head's keys [length, D]
    p_v,  # the same one's values [length, D]
    i_span,  # the span's first position
    length,
    block_size,
    first_sinks,
    last_sinks,
    stride_kt,
    stride_vt,
    D: tl.constexpr,
    BD: tl.constexpr,
    BS: tl.constexpr,
    UPCAST: tl.constexpr,
):
    """Keys and values of some sinks [BS, BD], and who sees them outside its own block [BM, BS]."""
    o_n, m_n, m_visible = sinks_outside(
        i_s + tl.arange(0, BS), o_first, i_span, length, block_size, first_sinks, last_sinks
    )
    b_k = load_rows(p_k + o_n[:, None] * stride_kt, m_n, D, BD, UPCAST)
    b_v = load_rows(p_v + o_n[:, None] * stride_vt, m_n, D, BD, UPCAST)
    return b_k, b_v, m_visible


@triton.jit
def attend_to_sinks(
    b_peak,  # [BM] Diag's running softmax
    b_mass,  # [BM]
    b_acc,  # [BM, BD]
    b_q,  # [BM, BD] queries
    o_first,  # [BM] where the block of each query begins, counted from the span's first token
    p_k,  # one sequence and head's keys [length, D]
    p_v,  # the same one's values [length, D]
    i_span,  # the span's first position
    length,
    block_size,
    i_sink,  # the first of these sinks
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
    for i_s in range(i_sink, first_sinks + last_sinks, BS):
        b_k, b_v, m_visible = load_sinks(
            i_s, o_first, p_k, p_v, i_span, length, block_size, first_sinks, last_sinks,
            stride_kt, stride_vt, D, BD, BS, UPCAST,
        )  # fmt: skip
        b_peak, b_mass, b_acc = attend(
            b_peak, b_mass, b_acc, b_q, b_k, b_v, m_visible, scale, True, PRECISION
        )
    return b_peak, b_mass, b_acc
