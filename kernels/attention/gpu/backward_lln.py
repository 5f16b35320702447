# mypy: disable-error-code="no-untyped-def,untyped-decorator,import-untyped"
# Kernels are compiled by Triton: pointers, blocks and constexprs have no Python types.
"""The backward of LLN between its state and the tokens, as queries and as keys."""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.attention.gpu.backward_state import pick_channels, score_channels, times_transposed
from kernels.attention.gpu.forward_state import LOG2_E, project
from kernels.attention.gpu.locate import load_rows, locate


@triton.jit
def through_state_as_queries(
    b_dq,  # [BM, BD] the queries' gradient so far
    p_q_rows,  # [BM, 1] where each query begins
    p_g_rows,  # [BM, 1] where its gradient begins
    m_rows,  # [BM] rows that exist
    b_share,  # [BM] LLN's share
    p_log_mass,  # one sequence and head's log s, float32 [D]
    p_value,  # the same one's kappa V [D, D]
    p_weight,  # one head's query map, float32 [D, D]; unused without WEIGHT
    p_bias,  # its bias, float32 [D]; unused without BIAS
    alpha,
    D: tl.constexpr,
    BD: tl.constexpr,
    BM: tl.constexpr,
    BC: tl.constexpr,
    BK: tl.constexpr,
    WEIGHT: tl.constexpr,
    BIAS: tl.constexpr,
    PRECISION: tl.constexpr,
    MAP_PRECISION: tl.constexpr,
    UPCAST: tl.constexpr,
):
    """The queries' gradient with that through the state, and g . lln of each."""
    o_d = tl.arange(0, BD)
    if WEIGHT:
        b_log_sum, b_mean = pick_channels(
            p_q_rows, p_g_rows, m_rows, p_log_mass, p_value, p_weight, p_bias, alpha,
            D, BD, BM, BC, BK, WEIGHT, BIAS, PRECISION, MAP_PRECISION, UPCAST,
        )  # fmt: skip
        for i_c in range(0, D, BC):
            o_c = i_c + tl.arange(0, BC)
            _, b_score, b_gain = score_channels(
                p_q_rows, p_g_rows, m_rows, o_c, p_log_mass, p_value, p_weight, p_bias, alpha,
                D, BD, BM, BC, BK, WEIGHT, BIAS, PRECISION, MAP_PRECISION, UPCAST,
            )  # fmt: skip
            b_pi = tl.exp2(b_score - b_log_sum[:, None]) * b_share[:, None]
            b_dz = alpha * b_pi * (b_gain - b_mean[:, None])
            b_w = tl.load(
                p_weight + o_d[:, None] * D + o_c[None, :],
                mask=(o_d < D)[:, None] & (o_c < D)[None, :],
                other=0.0,
            )  # [BD, BC]
            b_dq = tl.dot(b_dz, tl.trans(b_w), b_dq, input_precision=MAP_PRECISION)
    else:
        _, b_score, b_gain = score_channels(
            p_q_rows, p_g_rows, m_rows, o_d, p_log_mass, p_value, p_weight, p_bias, alpha,
            D, BD, BM, BD, BK, WEIGHT, BIAS, PRECISION, MAP_PRECISION, UPCAST,
        )  # fmt: skip
        b_exp = tl.exp2(b_score - tl.max(b_score, 1)[:, None])
        b_pi = b_exp / tl.sum(b_exp, 1)[:, None]
        b_mean = tl.sum(b_pi * b_gain, 1)
        b_dq += alpha * (b_pi * b_share[:, None] * (b_gain - b_mean[:, None]))
    return b_dq, b_mean


@triton.jit
def weigh_channels(
    p_k_rows,  # [BM, 1] where each key begins
    m_rows,  # [BM] rows that exist
    o_c,  # [BC] channels
    p_log_mass,  # one sequence and head's log s, float32 [D]
    p_weight,  # one head's key map, float32 [D, D]; unused without WEIGHT
    p_bias,  # its bias, float32 [D]; unused without BIAS
    beta,
    D: tl.constexpr,
    BD: tl.constexpr,
    BM: tl.constexpr,
    BC: tl.constexpr,
    WEIGHT: tl.constexpr,
    BIAS: tl.constexpr,
    MAP_PRECISION: tl.constexpr,
):
    """Mapped keys and kappa, each key's share of some channels: float32 [BM, BC] each."""
    m_c = o_c < D
    if WEIGHT:
        b_x = project(p_k_rows, m_rows, p_weight, o_c, D, BD, BM, BC, MAP_PRECISION)
    else:
        b_x = tl.load(p_k_rows + o_c[None, :], mask=m_rows[:, None] & m_c[None, :], other=0.0).to(
            tl.float32
        )
    beta *= LOG2_E
    b_offset = tl.load(p_log_mass + o_c, mask=m_c, other=float("inf")) * LOG2_E
    if BIAS:
        b_offset -= beta * tl.load(p_bias + o_c, mask=m_c, other=0.0)
    b_kappa = tl.exp2(beta * b_x - b_offset[None, :])
    # A row of zeros beyond the tile is not a key: its share could exceed 1 and overflow.
    return b_x, tl.where(m_rows[:, None], b_kappa, 0.0)


@triton.jit
def gather_values(
    p_k_rows,  # [BM, 1] where each key begins
    m_rows,  # [BM] rows that exist
    p_log_mass,  # one sequence and head's log s, float32 [D]
    p_value_gradient,  # gradient of its value [D, D]
    p_weight,  # one head's key map, float32 [D, D]; unused without WEIGHT
    p_bias,  # its bias, float32 [D]; unused without BIAS
    beta,
    D: tl.constexpr,
    BD: tl.constexpr,
    BM: tl.constexpr,
    BC: tl.constexpr,
    WEIGHT: tl.constexpr,
    BIAS: tl.constexpr,
    MAP_PRECISION: tl.constexpr,
    UPCAST: tl.constexpr,
):
    """The gradient of the values through the state, kappa^T times the state's: [BM, BD]."""
    b_dv = tl.zeros([BM, BD], tl.float32)
    for i_c in range(0, D, BC):
        o_c = i_c + tl.arange(0, BC)
        _, b_kappa = weigh_channels(
            p_k_rows, m_rows, o_c, p_log_mass, p_weight, p_bias, beta,
            D, BD, BM, BC, WEIGHT, BIAS, MAP_PRECISION,
        )  # fmt: skip
        b_m = load_rows(p_value_gradient + o_c[:, None] * D, o_c < D, D, BD, UPCAST)  # [BC, BD]
        b_dv = tl.dot(b_kappa.to(b_m.dtype), b_m, b_dv, input_precision=MAP_PRECISION)
    return b_dv


@triton.jit
def move_channels(
    p_k_rows,  # [BM, 1] where each key begins
    p_v_rows,  # [BM, 1] where its value begins
    m_rows,  # [BM] rows that exist
    o_c,  # [BC] channels
    p_log_mass,  # one sequence and head's log s, float32 [D]
    p_value_gradient,  # gradient of its value [D, D]
    p_excess,  # e of its channels, float32 [D]
    p_weight,  # one head's key map, float32 [D, D]; unused without WEIGHT
    p_bias,  # its bias, float32 [D]; unused without BIAS
    beta,
    D: tl.constexpr,
    BD: tl.constexpr,
    BM: tl.constexpr,
    BC: tl.constexpr,
    BK: tl.constexpr,
    WEIGHT: tl.constexpr,
    BIAS: tl.constexpr,
    MAP_PRECISION: tl.constexpr,
    UPCAST: tl.constexpr,
):
    """Mapped keys and the gradient of their scores in some channels: [BM, BC] each."""
    b_x, b_kappa = weigh_channels(
        p_k_rows, m_rows, o_c, p_log_mass, p_weight, p_bias, beta,
        D, BD, BM, BC, WEIGHT, BIAS, MAP_PRECISION,
    )  # fmt: skip
    b_gain = times_transposed(
        p_v_rows, m_rows, p_value_gradient, o_c, D, BM, BC, BK, MAP_PRECISION, UPCAST
    )
    b_excess = tl.load(p_excess + o_c, mask=o_c < D, other=0.0)
    return b_x, b_kappa * (b_gain - b_excess[None, :])


@triton.jit
def through_state_as_keys(
    b_dk,  # [BM, BD] the keys' gradient so far
    p_k_rows,  # [BM, 1] where each key begins
    p_v_rows,  # [BM, 1] where its value begins
    m_rows,  # [BM] rows that exist
    p_log_mass,  # one sequence and head's log s, float32 [D]
    p_value_gradient,  # gradient of its value [D, D]
    p_excess,  # e of its channels, float32 [D]
    p_weight,  # one head's key map, float32 [D, D]; unused without WEIGHT
    p_bias,  # its bias, float32 [D]; unused without BIAS
    beta,
    D: tl.constexpr,
    BD: tl.constexpr,
    BM: tl.constexpr,
    BC: tl.constexpr,
    BK: tl.constexpr,
    WEIGHT: tl.constexpr,
    BIAS: tl.constexpr,
    MAP_PRECISION: tl.constexpr,
    UPCAST: tl.constexpr,
):
    """The keys' gradient with that through the state, and each key's part of beta's."""
    o_d = tl.arange(0, BD)
    if WEIGHT:
        b_stretch = tl.zeros([BM], tl.float32)
        for i_c in range(0, D, BC):
            o_c = i_c + tl.arange(0, BC)
            b_x, b_dy = move_channels(
                p_k_rows, p_v_rows, m_rows, o_c, p_log_mass, p_value_gradient, p_excess, p_weight,
                p_bias, beta, D, BD, BM, BC, BK, WEIGHT, BIAS, MAP_PRECISION, UPCAST,
            )  # fmt: skip
            b_stretch += tl.sum(b_x * b_dy, 1)
            b_w = tl.load(
                p_weight + o_d[:, None] * D + o_c[None, :],
                mask=(o_d < D)[:, None] & (o_c < D)[None, :],
                other=0.0,
            )  # [BD, BC]
            b_dk = tl.dot(beta * b_dy, tl.trans(b_w), b_dk, input_precision=MAP_PRECISION)
    else:
        b_x, b_dy = move_channels(
            p_k_rows, p_v_rows, m_rows, o_d, p_log_mass, p_value_gradient, p_excess, p_weight,
            p_bias, beta, D, BD, BM, BD, BK, WEIGHT, BIAS, MAP_PRECISION, UPCAST,
        )  # fmt: skip
        b_stretch = tl.sum(b_x * b_dy, 1)
        b_dk += beta * b_dy
    return b_dk, b_stretch


@triton.jit(
    do_not_specialize=[
        "p_beta", "p_cu_seqlens", "num_sequences", "num_heads", "stride_beta_b", "stride_beta_h",
    ]
)  # fmt: skip
def key_map_gradient_kernel(
    p_k,  # keys [T, H, D]
    p_v,  # values [T, H, D]
    p_weight,  # key map's weight, float32 [H, D, D]
    p_bias,  # key map's bias, float32 [H, D]
    p_beta,  # float32 [B, H]
    p_cu_seqlens,  # first packed row of every sequence, then T, int32 [B + 1]
    p_log_mass,  # log s of every sequence, float32 [B, H, D]
    p_value_gradient,  # gradient of kappa V, any float type [B, H, D, D]
    p_channels,  # e and more of every channel, float32 [B, H, 3, D]
    p_part_weight,  # out: a piece's gradient of the map, float32 [slots, H, D, D]
    num_sequences,
    num_heads,
    stride_kt,
    stride_kh,
    stride_vt,
    stride_vh,
    stride_beta_b,
    stride_beta_h,
    PIECE: tl.constexpr,
    D: tl.constexpr,
    BD: tl.constexpr,
    BC: tl.constexpr,
    BK: tl.constexpr,
    BT: tl.constexpr,
    MAP_PRECISION: tl.constexpr,
    UPCAST: tl.constexpr,
):
    """k^T times the gradient of the mapped keys, by piece."""
    NC: tl.constexpr = (D + BC - 1) // BC
    i_program = tl.program_id(0)
    i_h = (i_program // NC % num_heads).to(tl.int64)
    i_slot = i_program // NC // num_heads
    i_b, i_begin, length, i_piece = locate(p_cu_seqlens, i_slot, num_sequences, PIECE, 1, PIECE)
    i_first = i_piece.to(tl.int64) * PIECE
    if i_first >= length:
        return

    beta = tl.load(p_beta + i_b * stride_beta_b + i_h * stride_beta_h)
    o_state = i_b * num_heads + i_h
    o_d = tl.arange(0, BD)
    o_c = i_program % NC * BC + tl.arange(0, BC)
    b_map = tl.zeros([BD, BC], tl.float32)
    num_tokens = tl.minimum(length - i_first, PIECE).to(tl.int32)
    i_row = i_begin + i_first
    p_k += i_h * stride_kh + i_row * stride_kt
    p_v += i_h * stride_vh + i_row * stride_vt
    for i_t in range(0, num_tokens, BT):
        o_t = i_t + tl.arange(0, BT)
        m_t = o_t < num_tokens
        p_k_rows = p_k + o_t[:, None] * stride_kt
        _, b_dy = move_channels(
            p_k_rows, p_v + o_t[:, None] * stride_vt, m_t, o_c, p_log_mass + o_state * D,
            p_value_gradient + o_state * D * D, p_channels + o_state * 3 * D,
            p_weight + i_h * D * D, p_bias + i_h * D, beta,
            D, BD, BT, BC, BK, True, True, MAP_PRECISION, UPCAST,
        )  # fmt: skip
        b_k = load_rows(p_k_rows, m_t, D, BD, UPCAST).to(tl.float32)
        b_map = tl.dot(tl.trans(b_k), beta * b_dy, b_map, input_precision=MAP_PRECISION)
    p_part_weight += (i_slot.to(tl.int64) * num_heads + i_h) * D * D
    m_map = (o_d < D)[:, None] & (o_c < D)[None, :]
    tl.store(p_part_weight + o_d[:, None] * D + o_c[None, :], b_map, mask=m_map)
