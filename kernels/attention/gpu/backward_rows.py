# mypy: disable-error-code="no-untyped-def,untyped-decorator,import-untyped"
# Kernels are compiled by Triton: pointers, blocks and constexprs have no Python types.
"""The backward's second pass: every tile of tokens, as queries and as keys, in one program.

As queries, tokens get gradients through the state and through their own block; as keys, from the
gradient of the state and from their block's queries. Weights are recomputed from q and k. Each tile
stores what it adds to its sequence's sinks and to beta, and further kernels add these up in the
order of the tiles.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.attention.gpu.backward_diag import (
    score_and_gain,
    through_block_as_keys,
    through_block_as_queries,
    through_own_rows,
    through_sinks,
)
from kernels.attention.gpu.backward_lln import (
    gather_values,
    through_state_as_keys,
    through_state_as_queries,
)
from kernels.attention.gpu.backward_state import average
from kernels.attention.gpu.backward_sums import average_over_sinks
from kernels.attention.gpu.forward_state import LOG2_E
from kernels.attention.gpu.locate import head_and_slot, load_rows, locate


# A sequence's result must not depend on its batch, so nothing that varies with the batch may
# choose the code, neither by its value nor by its alignment.
@triton.jit(
    do_not_specialize=[
        "p_alpha", "p_beta", "p_mix", "p_cu_seqlens", "num_rows", "num_sequences", "num_heads",
        "first_sinks", "last_sinks", "stride_alpha_b", "stride_alpha_h", "stride_beta_b",
        "stride_beta_h", "stride_mix_t", "stride_mix_h",
    ]
)  # fmt: skip
def rows_gradient_kernel(
    p_q,  # queries [T, H, D]
    p_k,  # keys [T, H, D]
    p_v,  # values [T, H, D]
    p_g,  # gradient of the output [T, H, D]
    p_dq,  # out: [T, H, D], a row's heads side by side
    p_dk,  # out: the same
    p_dv,  # out: the same
    p_dmix,  # out: float32 [T, H]; unused unless LLN and DIAG
    p_tile_beta,  # out: a tile's part of beta's, float32 [slots, H]; unused without LLN
    p_sink_k,  # out: a tile's part of the sinks' keys', float32 [slots, H, sinks, D]; with SINKS
    p_sink_v,  # out: a tile's part of the sinks' values', the same
    p_log_mass,  # log s of every sequence, float32 [B, H, D]; unused without LLN
    p_value,  # kappa V of every sequence [B, H, D, D]; unused without LLN
    p_value_gradient,  # gradient of kappa V, any float type [B, H, D, D]; unused without LLN
    p_channels,  # e and more of every channel, float32 [B, H, 3, D]; unused without LLN
    p_sums,  # what `diag_rows_kernel` writes of each row, float32 [3, H, T]; unused with ONE_STEP
    p_q_weight,  # query map's weight, float32 [H, D, D]; unused without Q_WEIGHT
    p_q_bias,  # query map's bias, float32 [H, D]; unused without Q_BIAS
    p_k_weight,  # key map's weight, float32 [H, D, D]; unused without K_WEIGHT
    p_k_bias,  # key map's bias, float32 [H, D]; unused without K_BIAS
    p_alpha,  # float32 [B, H]; unused without LLN
    p_beta,  # float32 [B, H]; unused without LLN
    p_mix,  # LLN's share, float32 [T, H] by its strides; unused unless LLN and DIAG
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
    stride_ot,
    stride_alpha_b,
    stride_alpha_h,
    stride_beta_b,
    stride_beta_h,
    stride_mix_t,
    stride_mix_h,
    D: tl.constexpr,
    BD: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BC: tl.constexpr,
    BK: tl.constexpr,
    BS: tl.constexpr,
    BLOCK: tl.constexpr,
    SPAN: tl.constexpr,
    TILES: tl.constexpr,
    ROWS: tl.constexpr,
    LLN: tl.constexpr,
    DIAG: tl.constexpr,
    Q_WEIGHT: tl.constexpr,
    Q_BIAS: tl.constexpr,
    K_WEIGHT: tl.constexpr,
    K_BIAS: tl.constexpr,
    ONE_STEP: tl.constexpr,
    SINKS: tl.constexpr,
    PRECISION: tl.constexpr,
    MAP_PRECISION: tl.constexpr,
    UPCAST: tl.constexpr,
):
    i_h, i_slot = head_and_slot()
    i_b, i_begin, length, i_tile = locate(p_cu_seqlens, i_slot, num_sequences, SPAN, TILES, ROWS)
    i_h, i_slot, i_begin = i_h.to(tl.int64), i_slot.to(tl.int64), i_begin.to(tl.int64)
    i_span = (i_tile // TILES).to(tl.int64) * SPAN
    i_span_end = tl.minimum(i_span + SPAN, length)
    i_m = i_span + i_tile % TILES * ROWS
    if i_m >= i_span_end:
        return

    o_m = tl.arange(0, BM)
    o_d = tl.arange(0, BD)
    tile_rows = tl.minimum(ROWS, i_span_end - i_m).to(tl.int32)
    m_m = o_m < tile_rows
    # Offsets within a tile fit in 32 bits; where it begins need not.
    i_row = i_begin + i_m
    p_q_rows = p_q + i_h * stride_qh + i_row * stride_qt + o_m[:, None] * stride_qt
    p_k_rows = p_k + i_h * stride_kh + i_row * stride_kt + o_m[:, None] * stride_kt
    p_v_rows = p_v + i_h * stride_vh + i_row * stride_vt + o_m[:, None] * stride_vt
    p_g_rows = p_g + i_h * stride_gh + i_row * stride_gt + o_m[:, None] * stride_gt
    o_state = i_b * num_heads + i_h
    p_log_mass += o_state * D
    p_value_gradient += o_state * D * D
    o_rows = (i_row + o_m) * num_heads + i_h
    m_entry = m_m[:, None] & (o_d < D)[None, :]
    o_entry = (i_row + o_m)[:, None] * stride_ot + i_h * D + o_d[None, :]
    b_lln_share = tl.full([BM], 1.0, tl.float32)
    b_diag_share = tl.full([BM], 1.0, tl.float32)
    if LLN and DIAG:
        p_mix += i_h * stride_mix_h + i_row * stride_mix_t
        b_lln_share = tl.load(p_mix + o_m * stride_mix_t, mask=m_m, other=0.0)
        b_diag_share = 1.0 - b_lln_share

    b_dq = tl.zeros([BM, BD], tl.float32)
    b_dk = tl.zeros([BM, BD], tl.float32)
    b_dv = tl.zeros([BM, BD], tl.float32)
    if LLN:
        beta = tl.load(p_beta + i_b * stride_beta_b + i_h * stride_beta_h)
        b_dv = gather_values(
            p_k_rows, m_m, p_log_mass, p_value_gradient, p_k_weight + i_h * D * D,
            p_k_bias + i_h * D, beta, D, BD, BM, BC, K_WEIGHT, K_BIAS, MAP_PRECISION, UPCAST,
        )  # fmt: skip
    if DIAG:
        b_q = load_rows(p_q_rows, m_m, D, BD, UPCAST)
        b_k = load_rows(p_k_rows, m_m, D, BD, UPCAST)
        b_v = load_rows(p_v_rows, m_m, D, BD, UPCAST)
        b_g = load_rows(p_g_rows, m_m, D, BD, UPCAST)
        p_k += i_h * stride_kh + i_begin * stride_kt
        p_v += i_h * stride_vh + i_begin * stride_vt
        # Rows beyond the tile take the block of its last one, so that none is without keys.
        o_span_m = (i_m - i_span).to(tl.int32) + tl.minimum(o_m, tile_rows - 1)
        o_block = o_span_m // BLOCK
        if ONE_STEP:
            m_visible = m_m[None, :] & (o_block[:, None] == (o_m // BLOCK)[None, :])
            b_score, b_gain = score_and_gain(b_q, b_k, b_v, b_g, m_visible, True, PRECISION)
            b_peak, b_mass, b_diag_mean = average(
                tl.full([BM], float("-inf"), tl.float32), tl.zeros([BM], tl.float32),
                tl.zeros([BM], tl.float32), b_score, b_gain, scale * LOG2_E,
            )  # fmt: skip
            if SINKS:
                b_peak, b_mass, b_diag_mean = average_over_sinks(
                    b_peak, b_mass, b_diag_mean, b_q, b_g, o_block * BLOCK, p_k, p_v, i_span,
                    length, BLOCK, first_sinks, last_sinks, scale, stride_kt, stride_vt,
                    D, BD, BS, PRECISION, UPCAST,
                )  # fmt: skip
            b_log_sum = b_peak + tl.log2(b_mass)
            b_diag_mean *= scale / b_mass
            b_dq, b_dk, b_dv = through_own_rows(
                b_q, b_k, b_g, b_score, b_gain, b_log_sum, b_diag_mean, b_diag_share, b_dv, scale,
                PRECISION,
            )  # fmt: skip
        else:
            stride_sums = num_heads.to(tl.int64) * num_rows
            p_sums += i_h * num_rows + i_begin + i_span
            o_own = (i_m - i_span).to(tl.int32) + o_m
            b_log_sum = tl.load(p_sums + o_own, mask=m_m, other=0.0)
            b_diag_mean = tl.load(p_sums + stride_sums + o_own, mask=m_m, other=0.0)
            num_keys = (i_span_end - i_span).to(tl.int32)
            b_dq = through_block_as_queries(
                b_q, b_g, b_log_sum, b_diag_mean, b_diag_share, p_k + i_span * stride_kt,
                p_v + i_span * stride_vt, num_keys, scale, stride_kt, stride_vt,
                D, BD, BM, BN, PRECISION, UPCAST,
            )  # fmt: skip
            i_first = i_begin + i_span
            b_dk, b_dv = through_block_as_keys(
                b_k, b_v, b_dv, p_q + i_h * stride_qh + i_first * stride_qt,
                p_g + i_h * stride_gh + i_first * stride_gt, p_sums, p_sums + stride_sums,
                p_sums + 2 * stride_sums, num_keys, scale, stride_qt, stride_gt,
                D, BD, BM, BN, LLN, PRECISION, UPCAST,
            )  # fmt: skip
        if SINKS:
            o_sinks = (i_slot * num_heads + i_h) * (first_sinks + last_sinks) * D
            b_dq = through_sinks(
                b_dq, b_q, b_g, b_log_sum, b_diag_mean, b_diag_share, o_block * BLOCK, p_k,
                p_v, p_sink_k + o_sinks, p_sink_v + o_sinks, i_span, length, BLOCK,
                first_sinks, last_sinks, scale, stride_kt, stride_vt, D, BD, BS, PRECISION, UPCAST,
            )  # fmt: skip
    tl.store(p_dv + o_entry, b_dv.to(p_dv.dtype.element_ty), mask=m_entry)
    if LLN:
        b_dk, b_stretch = through_state_as_keys(
            b_dk, p_k_rows, p_v_rows, m_m, p_log_mass, p_value_gradient,
            p_channels + o_state * 3 * D, p_k_weight + i_h * D * D, p_k_bias + i_h * D, beta,
            D, BD, BM, BC, BK, K_WEIGHT, K_BIAS, MAP_PRECISION, UPCAST,
        )  # fmt: skip
        tl.store(p_tile_beta + i_slot * num_heads + i_h, tl.sum(b_stretch, 0))
    tl.store(p_dk + o_entry, b_dk.to(p_dk.dtype.element_ty), mask=m_entry)
    if LLN:
        alpha = tl.load(p_alpha + i_b * stride_alpha_b + i_h * stride_alpha_h)
        b_dq, b_lln_mean = through_state_as_queries(
            b_dq, p_q_rows, p_g_rows, m_m, b_lln_share, p_log_mass, p_value + o_state * D * D,
            p_q_weight + i_h * D * D, p_q_bias + i_h * D, alpha,
            D, BD, BM, BC, BK, Q_WEIGHT, Q_BIAS, PRECISION, MAP_PRECISION, UPCAST,
        )  # fmt: skip
        if DIAG:
            tl.store(p_dmix + o_rows, b_lln_mean - b_diag_mean / scale, mask=m_m)
    tl.store(p_dq + o_entry, b_dq.to(p_dq.dtype.element_ty), mask=m_entry)
