# mypy: disable-error-code="no-untyped-def,untyped-decorator,import-untyped"
# Kernels are compiled by Triton: pointers, blocks and constexprs have no Python types.
"""How queries read LLN's state: a softmax over the channels, with score alpha q_c + log s_c."""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.attention.gpu.forward_diag import accumulate
from kernels.attention.gpu.forward_state import LOG2_E, project


@triton.jit
def read_state(
    b_q,  # [BM, BD] queries
    p_q_rows,  # [BM, 1] where each query begins
    m_rows,  # [BM] queries of this tile
    p_log_mass,  # one sequence and head's log s, float32 [D]
    p_value,  # the same one's kappa V [D, D]
    p_weight,  # one head's query map, float32 [D, D]; unused without WEIGHT
    p_bias,  # its bias, float32 [D]; unused without BIAS
    alpha,
    D: tl.constexpr,
    BD: tl.constexpr,
    BM: tl.constexpr,
    BC: tl.constexpr,
    WEIGHT: tl.constexpr,
    BIAS: tl.constexpr,
    PRECISION: tl.constexpr,
    MAP_PRECISION: tl.constexpr,
):
    """Two factors of softmax_c(alpha q_c + log s_c) @ kappa V, float32 [BM] and [BM, BD]."""
    o_d = tl.arange(0, BD)
    alpha *= LOG2_E
    b_peak = tl.full([BM], float("-inf"), tl.float32)
    b_mass = tl.zeros([BM], tl.float32)
    b_acc = tl.zeros([BM, BD], tl.float32)
    for i_c in range(0, D, BC):
        o_c = i_c + tl.arange(0, BC)
        m_c = o_c < D
        if WEIGHT:
            b_x = project(p_q_rows, m_rows, p_weight, o_c, D, BD, BM, BC, MAP_PRECISION)
        elif BC == BD:
            b_x = b_q.to(tl.float32)
        else:
            b_x = tl.load(
                p_q_rows + o_c[None, :], mask=m_rows[:, None] & m_c[None, :], other=0.0
            ).to(tl.float32)
        b_offset = tl.load(p_log_mass + o_c, mask=m_c, other=float("-inf")) * LOG2_E
        if BIAS:
            b_offset += alpha * tl.load(p_bias + o_c, mask=m_c, other=0.0)
        b_value = tl.load(
            p_value + o_c[:, None] * D + o_d[None, :],
            mask=m_c[:, None] & (o_d < D)[None, :],
            other=0.0,
        ).to(b_q.dtype)  # [BC, BD]
        b_score = alpha * b_x + b_offset[None, :]
        b_peak, b_mass, b_acc = accumulate(b_peak, b_mass, b_acc, b_score, b_value, 1.0, PRECISION)
    return 1.0 / b_mass, b_acc


@triton.jit
def load_state(
    p_log_mass,  # one sequence and head's log s, float32 [D]
    p_value,  # the same one's kappa V [D, D]
    p_weight,  # one head's query map, float32 [D, D]; unused without WEIGHT
    p_bias,  # its bias, float32 [D]; unused without BIAS
    alpha,  # times log2(e)
    D: tl.constexpr,
    BD: tl.constexpr,
    WEIGHT: tl.constexpr,
    BIAS: tl.constexpr,
):
    """What all channels add to a score, float32 [BD]; kappa V and the map [BD, BD]."""
    o_d = tl.arange(0, BD)
    m_d = o_d < D
    m_dd = m_d[:, None] & m_d[None, :]
    o_dd = o_d[:, None] * D + o_d[None, :]
    b_offset = tl.load(p_log_mass + o_d, mask=m_d, other=float("-inf")) * LOG2_E
    if BIAS:
        b_offset += alpha * tl.load(p_bias + o_d, mask=m_d, other=0.0)
    b_value = tl.load(p_value + o_dd, mask=m_dd, other=0.0)
    b_weight = tl.load(p_weight + o_dd, mask=m_dd, other=0.0) if WEIGHT else b_value
    return b_offset, b_value, b_weight


@triton.jit
def read_loaded_state(
    b_q,  # [BM, BD] queries
    b_offset,  # [BD]
    b_value,  # [BD, BD]
    b_weight,  # [BD, BD]; unused without WEIGHT
    alpha,  # times log2(e)
    WEIGHT: tl.constexpr,
    PRECISION: tl.constexpr,
    MAP_PRECISION: tl.constexpr,
):
    """As `read_state`, of a head whose channels are one step."""
    if not WEIGHT:
        b_x = b_q.to(tl.float32)
    elif b_q.dtype == tl.float32:
        b_x = tl.dot(b_q, b_weight, input_precision=MAP_PRECISION)
    else:
        # The map in two numbers of the queries' dtype: finer than tf32, and queries stay.
        b_high = b_weight.to(b_q.dtype)
        b_low = (b_weight - b_high.to(tl.float32)).to(b_q.dtype)
        b_x = tl.dot(b_q, b_low, tl.dot(b_q, b_high))
    b_score = alpha * b_x + b_offset[None, :]
    b_weights = tl.exp2(b_score - tl.max(b_score, 1)[:, None])
    b_out = tl.dot(b_weights.to(b_q.dtype), b_value.to(b_q.dtype), input_precision=PRECISION)
    return 1.0 / tl.sum(b_weights, 1), b_out
