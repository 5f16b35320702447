# mypy: disable-error-code="no-untyped-def,untyped-decorator,import-untyped"
# Kernels are compiled by Triton: pointers, blocks and constexprs have no Python types.
"""The output pass: every query reads its sequence's state and its own block, and writes once.

Both branches are an online softmax. Diag's keys are tokens; LLN's are the channels, with score
alpha q_c + log s_c and value row c of kappa V, so a large head is read a few channels at a time.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.attention.gpu.forward_block import attend_to_all_sinks, attend_to_block_and_sinks
from kernels.attention.gpu.forward_diag import attend_to_tile
from kernels.attention.gpu.forward_read import load_state, read_loaded_state, read_state
from kernels.attention.gpu.forward_shares import lln_shares
from kernels.attention.gpu.forward_state import LOG2_E
from kernels.attention.gpu.locate import head_and_slot, load_rows, locate_tile


@triton.jit
def answer_tile(
    p_q,  # queries [T, H, D]
    p_k,  # keys [T, H, D]; unused without DIAG
    p_v,  # values [T, H, D]; unused without DIAG
    p_out,  # out: [T, H, D], heads side by side
    p_log_mass,  # log s of every sequence, float32 [B, H, D]; unused without LLN
    p_value,  # kappa V of every sequence [B, H, D, D]; unused without LLN
    p_weight,  # query map's weight, float32 [H, D, D]; unused without WEIGHT
    p_bias,  # query map's bias, float32 [H, D]; unused without BIAS
    p_alpha,  # float32 [B, H]; unused without LLN
    p_mix,  # LLN's share, float32 [T, H] by its strides; unused unless LLN and DIAG
    p_gate,  # by which tokens choose it, p_mix then its bias, float32 [H, D]; unused without GATE
    p_mix_scale,  # factor of a sequence's shares, float32 [B]; unused without MIX_SCALE
    p_outside_k,  # keys of sinks outside the rows [num_outside, H, D]; unused without OUTSIDE
    p_outside_v,  # their values, likewise
    i_b,  # the sequence
    i_h,  # the head
    i_begin,  # the sequence's first packed row
    length,  # its tokens
    i_span,  # the first of the tokens that share their keys
    i_m,  # the tile's first token
    num_heads,
    first_sinks,
    last_sinks,
    num_outside,
    scale,
    stride_qt,
    stride_qh,
    stride_kt,
    stride_kh,
    stride_vt,
    stride_vh,
    stride_ot,
    stride_alpha_b,
    stride_alpha_h,
    stride_mix_t,
    stride_mix_h,
    stride_mix_b,
    D: tl.constexpr,
    BD: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BC: tl.constexpr,
    BS: tl.constexpr,
    BLOCK: tl.constexpr,
    SPAN: tl.constexpr,
    ROWS: tl.constexpr,
    LLN: tl.constexpr,
    DIAG: tl.constexpr,
    WEIGHT: tl.constexpr,
    BIAS: tl.constexpr,
    ONE_BLOCK: tl.constexpr,
    ONE_STEP: tl.constexpr,
    SINKS: tl.constexpr,
    OUTSIDE: tl.constexpr,
    GATE: tl.constexpr,
    MIX_SCALE: tl.constexpr,
    LIMIT: tl.constexpr,
    PRECISION: tl.constexpr,
    MAP_PRECISION: tl.constexpr,
    UPCAST: tl.constexpr,
):
    """One tile of one sequence and head: read, attend, mix, store."""
    # What LLN needs is requested before Diag's steps, where registers hold it meanwhile.
    EARLY: tl.constexpr = LLN and DIAG and not ONE_STEP and BC == BD and BD <= 32
    i_head = i_h.to(tl.int64)
    num_keys = tl.minimum(SPAN, length - i_span)
    o_d = tl.arange(0, BD)
    o_m = tl.arange(0, BM)
    num_queries = tl.minimum(ROWS, num_keys - (i_m - i_span))
    m_m = o_m < num_queries
    m_md = m_m[:, None] & (o_d < D)[None, :]
    # Offsets within a tile fit in 32 bits; where the tile begins need not.
    i_row = (i_begin + i_m).to(tl.int64)
    p_q_rows = p_q + i_head * stride_qh + i_row * stride_qt + o_m[:, None] * stride_qt
    b_q = tl.load(p_q_rows + o_d[None, :], mask=m_md, other=0.0)  # [BM, BD]
    if UPCAST:
        b_q = b_q.to(tl.float32)

    if DIAG:
        p_k += i_head * stride_kh
        p_v += i_head * stride_vh
        i_first = (i_begin + i_span).to(tl.int64)
        p_span_k = p_k + i_first * stride_kt
        p_span_v = p_v + i_first * stride_vt
        o_n = tl.arange(0, BN)
        # Requested before LLN's products, so that they arrive meanwhile, where registers hold them.
        if ONE_STEP and BD <= 128:
            b_k = load_rows(p_span_k + o_n[:, None] * stride_kt, o_n < num_keys, D, BD, UPCAST)
            b_v = load_rows(p_span_v + o_n[:, None] * stride_vt, o_n < num_keys, D, BD, UPCAST)
    if LLN:
        o_state = (i_b * num_heads + i_h).to(tl.int64)
        p_log_mass += o_state * D
        p_value += o_state * D * D
        p_weight += i_h * D * D
        p_bias += i_h * D
        p_mix += i_h * stride_mix_h + i_row * stride_mix_t
        p_gate += i_h * D
        p_mix_scale += i_b * stride_mix_b
        alpha = tl.load(p_alpha + i_b * stride_alpha_b + i_h * stride_alpha_h)
        if EARLY:
            b_offset, b_value, b_weight = load_state(
                p_log_mass, p_value, p_weight, p_bias, alpha * LOG2_E, D, BD, WEIGHT, BIAS
            )
        if ONE_STEP:
            b_mix = lln_shares(
                b_q, m_m, p_mix, p_gate, p_mix_scale, stride_mix_t, D, BD, BM, GATE, MIX_SCALE
            )
        if ONE_STEP or not DIAG:
            b_lln_share, b_out = read_state(
                b_q, p_q_rows, m_m, p_log_mass, p_value, p_weight, p_bias, alpha,
                D, BD, BM, BC, WEIGHT, BIAS, PRECISION, MAP_PRECISION,
            )  # fmt: skip
    if DIAG:
        if ONE_BLOCK:
            o_first = tl.zeros([1], tl.int32)
        else:
            # Rows beyond the tile take the block of its last one, so that none is without keys.
            # Several blocks are one tile, which begins where they do.
            o_first = tl.minimum(o_m, num_queries - 1) // BLOCK * BLOCK
        if ONE_STEP and BD > 128:
            b_k = load_rows(p_span_k + o_n[:, None] * stride_kt, o_n < num_keys, D, BD, UPCAST)
            b_v = load_rows(p_span_v + o_n[:, None] * stride_vt, o_n < num_keys, D, BD, UPCAST)
        p_k += i_begin.to(tl.int64) * stride_kt
        p_v += i_begin.to(tl.int64) * stride_vt
        p_outside_k += i_h * D
        p_outside_v += i_h * D
        if ONE_STEP:
            b_peak, b_mass, b_acc = attend_to_tile(
                b_q, b_k, b_v, o_first, num_keys, BLOCK, scale, BD, BM, BN, ONE_BLOCK,
                PRECISION,
            )  # fmt: skip
            b_peak, b_mass, b_acc = attend_to_all_sinks(
                b_peak, b_mass, b_acc, b_q, o_first, p_k, p_v, p_outside_k, p_outside_v, i_span,
                length, BLOCK, first_sinks, last_sinks, num_outside, scale, stride_kt,
                stride_vt, num_heads * D, D, BD, BS, 0, SINKS, OUTSIDE, PRECISION, UPCAST,
            )  # fmt: skip
        else:
            b_mass, b_acc = attend_to_block_and_sinks(
                b_q, o_first, p_k, p_v, p_outside_k, p_outside_v, p_span_k, p_span_v, i_span,
                num_keys, length, BLOCK, first_sinks, last_sinks, num_outside, scale,
                stride_kt, stride_vt, num_heads * D, D, BD, BM, BN, BS, SINKS, OUTSIDE, LIMIT,
                PRECISION, UPCAST,
            )  # fmt: skip
        # Where Diag takes several steps, registers hold one branch at a time.
        if LLN and not ONE_STEP:
            b_mix = lln_shares(
                b_q, m_m, p_mix, p_gate, p_mix_scale, stride_mix_t, D, BD, BM, GATE, MIX_SCALE
            )
            if EARLY:
                b_lln_share, b_out = read_loaded_state(
                    b_q, b_offset, b_value, b_weight, alpha * LOG2_E, WEIGHT, PRECISION,
                    MAP_PRECISION,
                )  # fmt: skip
            else:
                b_lln_share, b_out = read_state(
                    b_q, p_q_rows, m_m, p_log_mass, p_value, p_weight, p_bias, alpha,
                    D, BD, BM, BC, WEIGHT, BIAS, PRECISION, MAP_PRECISION,
                )  # fmt: skip
        # Both branches are divided by their masses and mixed in two multiplications a number.
        b_diag_share = 1.0 / b_mass
        if LLN:
            b_diag_share *= 1.0 - b_mix
            b_out = (b_mix * b_lln_share)[:, None] * b_out + b_diag_share[:, None] * b_acc
        else:
            b_out = b_diag_share[:, None] * b_acc
    else:
        b_out *= b_lln_share[:, None]
    p_out_rows = p_out + i_row * stride_ot + i_h * D + o_m[:, None] * stride_ot
    tl.store(p_out_rows + o_d[None, :], b_out.to(p_out.dtype.element_ty), mask=m_md)


# A sequence's result must not depend on its batch, so nothing that varies with the batch may
# choose the code, neither by its value nor by its alignment.
@triton.jit(
    do_not_specialize=[
        "p_alpha", "p_mix", "p_gate", "p_mix_scale", "p_cu_seqlens", "p_listed", "num_listed",
        "num_sequences", "num_heads", "first_sinks", "last_sinks", "num_outside", "short",
        "stride_alpha_b", "stride_alpha_h", "stride_mix_t", "stride_mix_h", "stride_mix_b",
    ]
)  # fmt: skip
def lln_diag_kernel(
    p_q,  # queries [T, H, D]
    p_k,  # keys [T, H, D]; unused without DIAG
    p_v,  # values [T, H, D]; unused without DIAG
    p_out,  # out: [T, H, D], heads side by side
    p_log_mass,  # log s of every sequence, float32 [B, H, D]; unused without LLN
    p_value,  # kappa V of every sequence [B, H, D, D]; unused without LLN
    p_weight,  # query map's weight, float32 [H, D, D]; unused without WEIGHT
    p_bias,  # query map's bias, float32 [H, D]; unused without BIAS
    p_alpha,  # float32 [B, H]; unused without LLN
    p_mix,  # LLN's share, float32 [T, H] by its strides; unused unless LLN and DIAG
    p_gate,  # by which tokens choose it, p_mix then its bias, float32 [H, D]; unused without GATE
    p_mix_scale,  # factor of a sequence's shares, float32 [B]; unused without MIX_SCALE
    p_outside_k,  # keys of sinks outside the rows [num_outside, H, D]; unused without OUTSIDE
    p_outside_v,  # their values, likewise
    p_cu_seqlens,  # first packed row of every sequence, then T, int32 [B + 1]
    p_listed,  # the batch's tiles as `tile_list` lists them, int32 [num_listed, 4]
    num_listed,  # 0 where there is no list
    num_sequences,
    num_heads,
    first_sinks,
    last_sinks,
    num_outside,
    short,  # sequences of at most this many tokens have their own kernel
    scale,  # log2(e) / sqrt(D)
    stride_qt,
    stride_qh,
    stride_kt,
    stride_kh,
    stride_vt,
    stride_vh,
    stride_ot,
    stride_alpha_b,
    stride_alpha_h,
    stride_mix_t,
    stride_mix_h,
    stride_mix_b,
    D: tl.constexpr,
    BD: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BC: tl.constexpr,
    BS: tl.constexpr,
    BLOCK: tl.constexpr,
    SPAN: tl.constexpr,
    TILES: tl.constexpr,
    ROWS: tl.constexpr,
    LLN: tl.constexpr,
    DIAG: tl.constexpr,
    WEIGHT: tl.constexpr,
    BIAS: tl.constexpr,
    ONE_BLOCK: tl.constexpr,
    ONE_STEP: tl.constexpr,
    SINKS: tl.constexpr,
    OUTSIDE: tl.constexpr,
    GATE: tl.constexpr,
    MIX_SCALE: tl.constexpr,
    LIMIT: tl.constexpr,
    PRECISION: tl.constexpr,
    MAP_PRECISION: tl.constexpr,
    UPCAST: tl.constexpr,
):
    i_h, i_slot = head_and_slot()
    i_b, i_begin, length, i_tile = locate_tile(
        p_cu_seqlens, p_listed, num_listed, i_slot, num_sequences, SPAN, TILES, ROWS
    )
    i_span = i_tile // TILES * SPAN
    i_m = i_span + i_tile % TILES * ROWS
    if (i_m - i_span >= tl.minimum(SPAN, length - i_span)) | (length <= short):
        return

    answer_tile(
        p_q, p_k, p_v, p_out, p_log_mass, p_value, p_weight, p_bias, p_alpha, p_mix,
        p_gate, p_mix_scale, p_outside_k, p_outside_v, i_b, i_h, i_begin, length, i_span, i_m,
        num_heads, first_sinks, last_sinks, num_outside, scale,
        stride_qt, stride_qh, stride_kt, stride_kh, stride_vt, stride_vh, stride_ot,
        stride_alpha_b, stride_alpha_h, stride_mix_t, stride_mix_h, stride_mix_b, D, BD, BM, BN,
        BC, BS, BLOCK, SPAN, ROWS, LLN, DIAG, WEIGHT, BIAS, ONE_BLOCK, ONE_STEP, SINKS, OUTSIDE,
        GATE, MIX_SCALE, LIMIT, PRECISION, MAP_PRECISION, UPCAST,
    )  # fmt: skip
