# mypy: disable-error-code="no-untyped-def,untyped-decorator,import-untyped"
# Kernels are compiled by Triton: pointers, blocks and constexprs have no Python types.
"""Short sequences in one launch: a program sums a sequence's state and reads it for all queries.

Whether a sequence is short depends on its own length alone, so its output does not depend on its
batch. The other passes skip short sequences.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.attention.gpu.forward_output import answer_tile
from kernels.attention.gpu.forward_state import LOG2_E, store_state, sum_tokens


# A sequence's result must not depend on its batch, so nothing that varies with the batch may
# choose the code, neither by its value nor by its alignment.
@triton.jit(
    do_not_specialize=[
        "p_alpha", "p_beta", "p_mix", "p_gate", "p_mix_scale", "p_cu_seqlens", "num_heads",
        "first_sinks", "last_sinks", "short", "stride_alpha_b", "stride_alpha_h", "stride_beta_b",
        "stride_beta_h", "stride_mix_t", "stride_mix_h", "stride_mix_b",
    ]
)  # fmt: skip
def short_sequences_kernel(
    p_q,  # queries [T, H, D]
    p_k,  # keys [T, H, D]
    p_v,  # values [T, H, D]
    p_out,  # out: [T, H, D], heads side by side
    p_log_mass,  # out: log s of every short sequence, float32 [B, H, D]
    p_value,  # out: kappa V of every short sequence [B, H, D, D]
    p_q_weight,  # query map's weight, float32 [H, D, D]; unused without Q_WEIGHT
    p_q_bias,  # query map's bias, float32 [H, D]; unused without Q_BIAS
    p_k_weight,  # key map's weight, float32 [H, D, D]; unused without K_WEIGHT
    p_k_bias,  # key map's bias, float32 [H, D]; unused without K_BIAS
    p_alpha,  # float32 [B, H]
    p_beta,  # float32 [B, H]
    p_mix,  # LLN's share, float32 [T, H] by its strides; unused without DIAG
    p_gate,  # by which tokens choose it, p_mix then its bias, float32 [H, D]; unused without GATE
    p_mix_scale,  # factor of a sequence's shares, float32 [B]; unused without MIX_SCALE
    p_cu_seqlens,  # first packed row of every sequence, then T, int32 [B + 1]
    num_heads,
    first_sinks,
    last_sinks,
    short,  # the longest sequence that is done here
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
    stride_beta_b,
    stride_beta_h,
    stride_mix_t,
    stride_mix_h,
    stride_mix_b,
    D: tl.constexpr,
    BD: tl.constexpr,
    BT: tl.constexpr,
    STATE_BC: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BC: tl.constexpr,
    BS: tl.constexpr,
    BLOCK: tl.constexpr,
    SPAN: tl.constexpr,
    ROWS: tl.constexpr,
    DIAG: tl.constexpr,
    Q_WEIGHT: tl.constexpr,
    Q_BIAS: tl.constexpr,
    K_WEIGHT: tl.constexpr,
    K_BIAS: tl.constexpr,
    ONE_BLOCK: tl.constexpr,
    ONE_STEP: tl.constexpr,
    SINKS: tl.constexpr,
    GATE: tl.constexpr,
    MIX_SCALE: tl.constexpr,
    LIMIT: tl.constexpr,
    PRECISION: tl.constexpr,
    MAP_PRECISION: tl.constexpr,
    UPCAST: tl.constexpr,
):
    i_program = tl.program_id(0)
    i_b = i_program // num_heads
    i_begin = tl.load(p_cu_seqlens + i_b)
    length = tl.load(p_cu_seqlens + i_b + 1) - i_begin
    if length > short:
        return
    i_h = (i_program % num_heads).to(tl.int64)
    i_begin = i_begin.to(tl.int64)

    beta = tl.load(p_beta + i_b * stride_beta_b + i_h * stride_beta_h)
    o_state = i_program.to(tl.int64) * D
    for i_c in range(0, D, STATE_BC):
        o_c = i_c + tl.arange(0, STATE_BC)
        b_peak, b_mass, b_sum = sum_tokens(
            p_k + i_h * stride_kh + i_begin * stride_kt,
            p_v + i_h * stride_vh + i_begin * stride_vt,
            p_k_weight + i_h * D * D, beta, length, o_c, stride_kt, stride_vt,
            D, BD, STATE_BC, BT, K_WEIGHT, PRECISION, MAP_PRECISION, UPCAST,
        )  # fmt: skip
        if K_BIAS:
            b_peak += beta * LOG2_E * tl.load(p_k_bias + i_h * D + o_c, mask=o_c < D, other=0.0)
        store_state(
            b_peak, b_mass, b_sum, p_log_mass + o_state, p_value + o_state * D, length, o_c, D, BD
        )
    # The state is small and in cache: it is read back as any other, once all threads have written.
    tl.debug_barrier()
    for i_span in range(0, length, SPAN):
        num_tokens = tl.minimum(SPAN, length - i_span)
        for i_tile in range((num_tokens + ROWS - 1) // ROWS):
            i_m = i_span + i_tile * ROWS
            answer_tile(
                p_q, p_k, p_v, p_out, p_log_mass, p_value, p_q_weight, p_q_bias, p_alpha,
                p_mix, p_gate, p_mix_scale, p_k, p_v, i_b, i_h, i_begin, length, i_span, i_m,
                num_heads, first_sinks, last_sinks, 0, scale,
                stride_qt, stride_qh, stride_kt, stride_kh, stride_vt, stride_vh, stride_ot,
                stride_alpha_b, stride_alpha_h, stride_mix_t, stride_mix_h, stride_mix_b, D, BD,
                BM, BN, BC, BS, BLOCK, SPAN, ROWS, True, DIAG, Q_WEIGHT, Q_BIAS, ONE_BLOCK,
                ONE_STEP, SINKS, False, GATE, MIX_SCALE, LIMIT, PRECISION, MAP_PRECISION, UPCAST,
            )  # fmt: skip
