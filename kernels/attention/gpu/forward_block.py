# mypy: disable-error-code="no-untyped-def,untyped-decorator,import-untyped"
# Kernels are compiled by Triton: pointers, blocks and constexprs have no Python types.
"""Diag where a block takes several steps: over the block under one peak, and over the sinks.

A peak that stays leaves no maxima to find and nothing to scale again. It is the greatest score
among a few keys that every query sees, so masses are at least about 1, and a weight loses no digit
where it is large. Only scores far above the peak could overflow: the mass tells, and the tile is
then answered again under a peak that follows the scores.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.attention.gpu.forward_diag import (
    attend,
    attend_to_block,
    attend_to_rows,
    attend_to_sinks,
    load_sinks,
)
from kernels.attention.gpu.locate import load_rows, load_whole_rows

MASSES = tl.constexpr(8)
"""Columns of the product that adds up masses: the fewest that tensor cores take."""


@triton.jit
def weigh(
    b_peak,  # [BM]
    b_masses,  # [BM, MASSES] sum of 2 ** (score scale - peak) so far, in every column
    b_acc,  # [BM, BD] sum of 2 ** (score scale - peak) value so far
    b_score,  # [BM, BN] scores, -inf where hidden
    b_v,  # [BN, BD] values
    scale,  # log2(e) / sqrt(D)
    BN: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """One step under the peak."""
    b_weight = tl.exp2(b_score * scale - b_peak[:, None])
    if b_v.dtype == tl.float32:
        b_masses += tl.sum(b_weight, 1)[:, None]
    else:
        # Tensor cores have time to add up, in float32, and of the weights as they are multiplied.
        b_masses = tl.dot(b_weight.to(b_v.dtype), tl.full([BN, MASSES], 1.0, b_v.dtype), b_masses)
    b_acc = tl.dot(b_weight.to(b_v.dtype), b_v, b_acc, input_precision=PRECISION)
    return b_masses, b_acc


@triton.jit
def attend_under_peak(
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
    """Peak, mass and weighted sum of values of a block: [BM], [BM], [BM, BD].

    The peak is found within the loop, so that keys and values are requested before it is known.
    """
    o_n = tl.arange(0, BN)
    p_k_rows = p_k + o_n[:, None] * stride_kt
    p_v_rows = p_v + o_n[:, None] * stride_vt
    b_peak = tl.zeros([BM], tl.float32)
    b_masses = tl.zeros([BM, MASSES], tl.float32)
    b_acc = tl.zeros([BM, BD], tl.float32)
    num_steps = num_keys // BN
    for i_n in range(num_steps):
        b_k = load_whole_rows(p_k_rows, D, BD, UPCAST)
        b_v = load_whole_rows(p_v_rows, D, BD, UPCAST)
        b_score = tl.dot(b_q, tl.trans(b_k), input_precision=PRECISION)  # [BM, BN]
        if i_n == 0:
            b_peak = tl.max(b_score, 1) * scale
        b_masses, b_acc = weigh(b_peak, b_masses, b_acc, b_score, b_v, scale, BN, PRECISION)
        p_k_rows += BN * stride_kt
        p_v_rows += BN * stride_vt
    num_whole = num_steps * BN
    if num_whole < num_keys:
        m_n = o_n < num_keys - num_whole
        b_k = load_rows(p_k_rows, m_n, D, BD, UPCAST)
        b_v = load_rows(p_v_rows, m_n, D, BD, UPCAST)
        b_score = tl.dot(b_q, tl.trans(b_k), input_precision=PRECISION)
        b_score = tl.where(m_n[None, :], b_score, float("-inf"))
        if num_steps == 0:
            b_peak = tl.max(b_score, 1) * scale
        b_masses, b_acc = weigh(b_peak, b_masses, b_acc, b_score, b_v, scale, BN, PRECISION)
    return b_peak, tl.max(b_masses, 1), b_acc


@triton.jit
def attend_to_all_sinks(
    b_peak,  # [BM] Diag's running softmax
    b_mass,  # [BM]
    b_acc,  # [BM, BD]
    b_q,  # [BM, BD] queries
    o_first,  # [BM] where the block of each query begins, counted from the span's first token
    p_k,  # one sequence and head's keys [length, D]
    p_v,  # the same one's values [length, D]
    p_outside_k,  # keys of sinks outside the rows, one head's; unused without OUTSIDE
    p_outside_v,  # their values, likewise
    i_span,  # the span's first position
    length,
    block_size,
    first_sinks,
    last_sinks,
    num_outside,
    scale,
    stride_kt,
    stride_vt,
    stride_outside,
    D: tl.constexpr,
    BD: tl.constexpr,
    BS: tl.constexpr,
    FIRST: tl.constexpr,  # of those that are left
    SINKS: tl.constexpr,
    OUTSIDE: tl.constexpr,
    PRECISION: tl.constexpr,
    UPCAST: tl.constexpr,
):
    """Diag's running softmax after the sinks outside the query's own block."""
    # Even a loop without rounds costs its requests.
    if SINKS and first_sinks + last_sinks > FIRST:
        b_peak, b_mass, b_acc = attend_to_sinks(
            b_peak, b_mass, b_acc, b_q, o_first, p_k, p_v, i_span, length, block_size, FIRST,
            first_sinks, last_sinks, scale, stride_kt, stride_vt, D, BD, BS, PRECISION, UPCAST,
        )  # fmt: skip
    if OUTSIDE:
        b_peak, b_mass, b_acc = attend_to_rows(
            b_peak, b_mass, b_acc, b_q, p_outside_k, p_outside_v, num_outside, scale,
            stride_outside, D, BD, BS, PRECISION, UPCAST,
        )  # fmt: skip
    return b_peak, b_mass, b_acc


@triton.jit
def attend_to_block_and_sinks(
    b_q,  # [BM, BD] queries of one block
    o_first,  # [BM] where the block of each query begins, counted from the span's first token
    p_k,  # one sequence and head's keys [length, D]
    p_v,  # the same one's values [length, D]
    p_outside_k,  # keys of sinks outside the rows, one head's; unused without OUTSIDE
    p_outside_v,  # their values, likewise
    p_block_k,  # the block's keys
    p_block_v,  # and values
    i_span,  # its first position
    num_keys,  # of the block
    length,
    block_size,
    first_sinks,
    last_sinks,
    num_outside,
    scale,
    stride_kt,
    stride_vt,
    stride_outside,
    D: tl.constexpr,
    BD: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BS: tl.constexpr,
    SINKS: tl.constexpr,
    OUTSIDE: tl.constexpr,
    LIMIT: tl.constexpr,
    PRECISION: tl.constexpr,
    UPCAST: tl.constexpr,
):
    """Mass and weighted sum of values, where a block takes several steps: [BM], [BM, BD]."""
    if SINKS:  # requested first, to arrive while the block is read
        b_sink_k, b_sink_v, m_sinks = load_sinks(
            0, o_first, p_k, p_v, i_span, length, block_size, first_sinks, last_sinks,
            stride_kt, stride_vt, D, BD, BS, UPCAST,
        )  # fmt: skip
    if LIMIT > 0:
        b_peak, b_mass, b_acc = attend_under_peak(
            b_q, p_block_k, p_block_v, num_keys, scale, stride_kt, stride_vt,
            D, BD, BM, BN, PRECISION, UPCAST,
        )  # fmt: skip
        overflows = tl.sum(tl.where(b_mass < LIMIT, 0, 1), 0) > 0  # or is not a number
    else:
        b_peak = tl.zeros([BM], tl.float32)
        b_mass = tl.zeros([BM], tl.float32)
        b_acc = tl.zeros([BM, BD], tl.float32)
        overflows = True
    if overflows:
        b_peak, b_mass, b_acc = attend_to_block(
            b_q, p_block_k, p_block_v, num_keys, scale, stride_kt, stride_vt,
            D, BD, BM, BN, PRECISION, UPCAST,
        )  # fmt: skip
    if SINKS:
        b_peak, b_mass, b_acc = attend(
            b_peak, b_mass, b_acc, b_q, b_sink_k, b_sink_v, m_sinks, scale, True, PRECISION
        )
    b_peak, b_mass, b_acc = attend_to_all_sinks(
        b_peak, b_mass, b_acc, b_q, o_first, p_k, p_v, p_outside_k, p_outside_v, i_span, length,
        block_size, first_sinks, last_sinks, num_outside, scale, stride_kt, stride_vt,
        stride_outside, D, BD, BS, BS, SINKS, OUTSIDE, PRECISION, UPCAST,
    )  # fmt: skip
    return b_mass, b_acc
