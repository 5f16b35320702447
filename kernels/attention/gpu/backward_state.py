# mypy: disable-error-code="no-untyped-def,untyped-decorator,import-untyped"
# Kernels are compiled by Triton: pointers, blocks and constexprs have no Python types.
"""The backward's first pass: queries and gradients in, the gradient of every LLNState out.

With pi the share of each channel in a query's answer and g its gradient, a channel's value has the
gradient sum_i pi_ic g_i, and its keys must further know e_c = sum_i pi_ic (g_i . out_i) alone. As
in the forward, a program sums one piece of one sequence and pieces are added in their order.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.attention.gpu.forward_state import LOG2_E, project
from kernels.attention.gpu.locate import locate


@triton.jit
def times_transposed(
    p_rows,  # [BT, 1] where each row begins
    m_rows,  # [BT] rows that exist
    p_matrix,  # [D, D]
    o_c,  # [BC] the wanted rows of the matrix
    D: tl.constexpr,
    BT: tl.constexpr,
    BC: tl.constexpr,
    BK: tl.constexpr,
    PRECISION: tl.constexpr,
    UPCAST: tl.constexpr,
):
    """Rows times some rows of a matrix, float32 [BT, BC], in the matrix's precision."""
    m_c = o_c < D
    b_y = tl.zeros([BT, BC], tl.float32)
    for i_k in range(0, D, BK):
        o_k = i_k + tl.arange(0, BK)
        m_k = o_k < D
        b_x = tl.load(p_rows + o_k[None, :], mask=m_rows[:, None] & m_k[None, :], other=0.0)
        b_m = tl.load(
            p_matrix + o_c[:, None] * D + o_k[None, :],
            mask=m_c[:, None] & m_k[None, :],
            other=0.0,
        )  # [BC, BK]
        if UPCAST:
            b_m = b_m.to(tl.float32)
        b_y = tl.dot(b_x.to(b_m.dtype), tl.trans(b_m), b_y, input_precision=PRECISION)
    return b_y


@triton.jit
def score_channels(
    p_q_rows,  # [BT, 1] where each query begins
    p_g_rows,  # [BT, 1] where its gradient begins
    m_rows,  # [BT] rows that exist
    o_c,  # [BC] channels
    p_log_mass,  # one sequence and head's log s, float32 [D]
    p_value,  # the same one's kappa V [D, D]
    p_weight,  # one head's query map, float32 [D, D]; unused without WEIGHT
    p_bias,  # its bias, float32 [D]; unused without BIAS
    alpha,
    D: tl.constexpr,
    BD: tl.constexpr,
    BT: tl.constexpr,
    BC: tl.constexpr,
    BK: tl.constexpr,
    WEIGHT: tl.constexpr,
    BIAS: tl.constexpr,
    PRECISION: tl.constexpr,
    MAP_PRECISION: tl.constexpr,
    UPCAST: tl.constexpr,
):
    """Mapped queries, scores alpha x + log s and g . value of some channels, each [BT, BC].

    Scores, here and in all of the backward, are logarithms to base 2.
    """
    m_c = o_c < D
    if WEIGHT:
        b_x = project(p_q_rows, m_rows, p_weight, o_c, D, BD, BT, BC, MAP_PRECISION)
    else:
        b_x = tl.load(p_q_rows + o_c[None, :], mask=m_rows[:, None] & m_c[None, :], other=0.0).to(
            tl.float32
        )
    alpha *= LOG2_E
    b_offset = tl.load(p_log_mass + o_c, mask=m_c, other=float("-inf")) * LOG2_E
    if BIAS:
        b_offset += alpha * tl.load(p_bias + o_c, mask=m_c, other=0.0)
    b_gain = times_transposed(p_g_rows, m_rows, p_value, o_c, D, BT, BC, BK, PRECISION, UPCAST)
    return b_x, alpha * b_x + b_offset[None, :], b_gain


@triton.jit
def pick_channels(
    p_q_rows,  # [BT, 1] where each query begins
    p_g_rows,  # [BT, 1] where its gradient begins
    m_rows,  # [BT] rows that exist
    p_log_mass,  # one sequence and head's log s, float32 [D]
    p_value,  # the same one's kappa V [D, D]
    p_weight,  # one head's query map, float32 [D, D]; unused without WEIGHT
    p_bias,  # its bias, float32 [D]; unused without BIAS
    alpha,
    D: tl.constexpr,
    BD: tl.constexpr,
    BT: tl.constexpr,
    BC: tl.constexpr,
    BK: tl.constexpr,
    WEIGHT: tl.constexpr,
    BIAS: tl.constexpr,
    PRECISION: tl.constexpr,
    MAP_PRECISION: tl.constexpr,
    UPCAST: tl.constexpr,
):
    """The channel softmax's log normaliser and sum_c pi_c (g . value_c) = g . out, each [BT]."""
    b_peak = tl.full([BT], float("-inf"), tl.float32)
    b_mass = tl.zeros([BT], tl.float32)
    b_mean = tl.zeros([BT], tl.float32)
    for i_c in range(0, D, BC):
        _, b_score, b_gain = score_channels(
            p_q_rows, p_g_rows, m_rows, i_c + tl.arange(0, BC), p_log_mass, p_value, p_weight,
            p_bias, alpha, D, BD, BT, BC, BK, WEIGHT, BIAS, PRECISION, MAP_PRECISION, UPCAST,
        )  # fmt: skip
        b_peak, b_mass, b_mean = average(b_peak, b_mass, b_mean, b_score, b_gain, 1.0)
    return b_peak + tl.log2(b_mass), b_mean / b_mass


@triton.jit
def average(
    b_peak,  # [BM] greatest score so far, times scale
    b_mass,  # [BM] sum of 2 ** (score scale - peak) so far
    b_mean,  # [BM] sum of 2 ** (score scale - peak) gain so far
    b_score,  # [BM, BN] new scores, -inf where hidden; one in every first row is finite
    b_gain,  # [BM, BN] what is averaged
    scale,  # not negative
):
    """One step of an online softmax whose values are the gradient of its weights."""
    b_new_peak = tl.maximum(b_peak, tl.max(b_score, 1) * scale)
    b_shrink = tl.exp2(b_peak - b_new_peak)
    b_weight = tl.exp2(b_score * scale - b_new_peak[:, None])
    b_mass = b_mass * b_shrink + tl.sum(b_weight, 1)
    b_mean = b_mean * b_shrink + tl.sum(b_weight * b_gain, 1)
    return b_new_peak, b_mass, b_mean


# A sequence's result must not depend on its batch, so nothing that varies with the batch may
# choose the code, neither by its value nor by its alignment.
@triton.jit(
    do_not_specialize=[
        "p_alpha", "p_mix", "p_cu_seqlens", "num_sequences", "num_heads", "stride_alpha_b",
        "stride_alpha_h", "stride_mix_t", "stride_mix_h",
    ]
)  # fmt: skip
def state_gradient_kernel(
    p_q,  # queries [T, H, D]
    p_g,  # gradient of the output [T, H, D]
    p_weight,  # query map's weight, float32 [H, D, D]; unused without WEIGHT
    p_bias,  # query map's bias, float32 [H, D]; unused without BIAS
    p_alpha,  # float32 [B, H]
    p_mix,  # LLN's share, float32 [T, H] by its strides; unused without MIX
    p_cu_seqlens,  # first packed row of every sequence, then T, int32 [B + 1]
    p_log_mass,  # log s of every sequence, float32 [B, H, D]
    p_value,  # kappa V of every sequence [B, H, D, D]
    p_value_gradient,  # out: of sequences of one piece, any float type [B, H, D, D]
    p_channels,  # out: e, sum of dz, sum of x dz by channel, of the same, float32 [B, H, 3, D]
    p_part_value_gradient,  # out: a piece's, float32 [slots, H, D, D]
    p_part_channels,  # out: a piece's, float32 [slots, H, 3, D]
    p_part_weight,  # out: a piece's gradient of the map, float32 [slots, H, D, D]; with WEIGHT
    num_sequences,
    num_heads,
    stride_qt,
    stride_qh,
    stride_gt,
    stride_gh,
    stride_alpha_b,
    stride_alpha_h,
    stride_mix_t,
    stride_mix_h,
    PIECE: tl.constexpr,
    D: tl.constexpr,
    BD: tl.constexpr,
    BC: tl.constexpr,
    BK: tl.constexpr,
    BT: tl.constexpr,
    MIX: tl.constexpr,
    WEIGHT: tl.constexpr,
    BIAS: tl.constexpr,
    PRECISION: tl.constexpr,
    MAP_PRECISION: tl.constexpr,
    UPCAST: tl.constexpr,
):
    NC: tl.constexpr = (D + BC - 1) // BC
    i_program = tl.program_id(0)
    i_c = i_program % NC
    i_h = (i_program // NC % num_heads).to(tl.int64)
    i_slot = i_program // NC // num_heads
    i_b, i_begin, length, i_piece = locate(p_cu_seqlens, i_slot, num_sequences, PIECE, 1, PIECE)
    # An empty sequence still has its first piece, which writes a gradient of nothing.
    i_first = i_piece.to(tl.int64) * PIECE
    if (i_piece > 0) & (i_first >= length):
        return

    alpha = tl.load(p_alpha + i_b * stride_alpha_b + i_h * stride_alpha_h)
    o_state = i_b * num_heads + i_h
    p_log_mass += o_state * D
    p_value += o_state * D * D
    p_head_weight = p_weight + i_h * D * D
    p_head_bias = p_bias + i_h * D
    o_d = tl.arange(0, BD)
    o_c = i_c * BC + tl.arange(0, BC)
    m_d = o_d < D
    m_c = o_c < D
    b_value_gradient = tl.zeros([BC, BD], tl.float32)
    b_excess = tl.zeros([BC], tl.float32)
    b_scores = tl.zeros([BC], tl.float32)
    b_stretch = tl.zeros([BC], tl.float32)
    if WEIGHT:
        b_map = tl.zeros([BD, BC], tl.float32)
    num_tokens = tl.minimum(length - i_first, PIECE).to(tl.int32)
    # Offsets within a piece fit in 32 bits; where it begins need not.
    i_row = i_begin + i_first
    p_q += i_h * stride_qh + i_row * stride_qt
    p_g += i_h * stride_gh + i_row * stride_gt
    p_mix += i_h * stride_mix_h + i_row * stride_mix_t
    for i_t in range(0, num_tokens, BT):
        o_t = i_t + tl.arange(0, BT)
        m_t = o_t < num_tokens
        m_td = m_t[:, None] & m_d[None, :]
        p_q_rows = p_q + o_t[:, None] * stride_qt
        p_g_rows = p_g + o_t[:, None] * stride_gt
        b_g = tl.load(p_g_rows + o_d[None, :], mask=m_td, other=0.0)  # [BT, BD]
        if UPCAST:
            b_g = b_g.to(tl.float32)
        b_x, b_score, b_gain = score_channels(
            p_q_rows, p_g_rows, m_t, o_c, p_log_mass, p_value, p_head_weight, p_head_bias, alpha,
            D, BD, BT, BC, BK, WEIGHT, BIAS, PRECISION, MAP_PRECISION, UPCAST,
        )  # fmt: skip
        if BC == BD:
            b_exp = tl.exp2(b_score - tl.max(b_score, 1)[:, None])
            b_pi = b_exp / tl.sum(b_exp, 1)[:, None]
            b_mean = tl.sum(b_pi * b_gain, 1)
        else:
            b_log_sum, b_mean = pick_channels(
                p_q_rows, p_g_rows, m_t, p_log_mass, p_value, p_head_weight, p_head_bias, alpha,
                D, BD, BT, BC, BK, WEIGHT, BIAS, PRECISION, MAP_PRECISION, UPCAST,
            )  # fmt: skip
            b_pi = tl.exp2(b_score - b_log_sum[:, None])
        if MIX:
            b_pi *= tl.load(p_mix + o_t * stride_mix_t, mask=m_t, other=0.0)[:, None]
        # Rows beyond the piece have no gradient, so they add nothing.
        b_value_gradient = tl.dot(
            tl.trans(b_pi.to(b_g.dtype)), b_g, b_value_gradient, input_precision=PRECISION
        )
        b_excess += tl.sum(b_pi * b_mean[:, None], 0)
        b_dz = b_pi * (b_gain - b_mean[:, None])
        b_scores += tl.sum(b_dz, 0)
        b_stretch += tl.sum(b_x * b_dz, 0)
        if WEIGHT:
            b_q = tl.load(p_q_rows + o_d[None, :], mask=m_td, other=0.0).to(tl.float32)
            b_map = tl.dot(tl.trans(b_q), alpha * b_dz, b_map, input_precision=MAP_PRECISION)

    m_entry = m_c[:, None] & m_d[None, :]
    o_entry = o_c[:, None] * D + o_d[None, :]
    if WEIGHT:
        p_part_weight += (i_slot.to(tl.int64) * num_heads + i_h) * D * D
        m_map = m_d[:, None] & m_c[None, :]
        tl.store(p_part_weight + o_d[:, None] * D + o_c[None, :], b_map, mask=m_map)
    if length <= PIECE:
        p_channels += o_state * 3 * D
        p_entries = p_value_gradient + o_state * D * D + o_entry
        tl.store(p_entries, b_value_gradient.to(p_entries.dtype.element_ty), mask=m_entry)
    else:
        o_part = i_slot.to(tl.int64) * num_heads + i_h
        p_channels = p_part_channels + o_part * 3 * D
        tl.store(p_part_value_gradient + o_part * D * D + o_entry, b_value_gradient, mask=m_entry)
    tl.store(p_channels + o_c, b_excess, mask=m_c)
    tl.store(p_channels + D + o_c, b_scores, mask=m_c)
    tl.store(p_channels + 2 * D + o_c, b_stretch, mask=m_c)
