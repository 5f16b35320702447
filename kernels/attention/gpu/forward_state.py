# mypy: disable-error-code="no-untyped-def,untyped-decorator,import-untyped"
# Kernels are compiled by Triton: pointers, blocks and constexprs have no Python types.
"""The state pass: keys and values in, one LLNState a sequence and head out.

Channel c weighs token j by exp(beta k_jc), computed as a power of two. A program sums one piece of
one sequence under the running maximum of each channel, so no finite score can overflow. A sequence
of one piece is finished there and then; the pieces of a longer one are left behind and merged in
their order.
"""

from __future__ import annotations

import math

import triton
import triton.language as tl

from kernels.attention.gpu.locate import load_rows, locate

LOG2_E = tl.constexpr(1 / math.log(2))
LOG_2 = tl.constexpr(math.log(2))


@triton.jit
def project(
    p_rows,  # [BT, 1] where each row begins
    m_rows,  # [BT] rows that exist
    p_weight,  # one head's weight, float32 [D, D]
    o_c,  # [BC] the wanted output channels
    D: tl.constexpr,
    BD: tl.constexpr,
    BT: tl.constexpr,
    BC: tl.constexpr,
    MAP_PRECISION: tl.constexpr,
):
    """Channels o_c of x W, float32 [BT, BC]."""
    BK: tl.constexpr = min(BD, 64)
    m_c = o_c < D
    b_y = tl.zeros([BT, BC], tl.float32)
    for i_k in range(0, D, BK):
        o_k = i_k + tl.arange(0, BK)
        m_k = o_k < D
        b_x = tl.load(p_rows + o_k[None, :], mask=m_rows[:, None] & m_k[None, :], other=0.0)
        b_w = tl.load(
            p_weight + o_k[:, None] * D + o_c[None, :],
            mask=m_k[:, None] & m_c[None, :],
            other=0.0,
        )  # [BK, BC]
        b_y = tl.dot(b_x.to(tl.float32), b_w, b_y, input_precision=MAP_PRECISION)
    return b_y


@triton.jit
def sum_step(
    b_peak,  # [BC] greatest score so far
    b_masses,  # [BT, BC] sums of 2 ** (score - peak) so far, of every BT-th token
    b_sum,  # [BC, BD] sum of 2 ** (score - peak) v so far
    p_k_rows,  # [BT, 1] where each key begins
    p_v_rows,  # [BT, 1] where each value begins
    m_t,  # [BT] tokens that exist
    p_weight,  # one head's key map, float32 [D, D]; unused without WEIGHT
    beta,  # times log2(e)
    o_c,  # [BC] channels
    D: tl.constexpr,
    BD: tl.constexpr,
    BC: tl.constexpr,
    BT: tl.constexpr,
    IS_LAST: tl.constexpr,
    WEIGHT: tl.constexpr,
    PRECISION: tl.constexpr,
    MAP_PRECISION: tl.constexpr,
    UPCAST: tl.constexpr,
):
    """Some more tokens; only the last step has any to hide."""
    b_v = load_rows(p_v_rows, m_t, D, BD, UPCAST)
    if WEIGHT:
        b_x = project(p_k_rows, m_t, p_weight, o_c, D, BD, BT, BC, MAP_PRECISION)
    else:
        m_x = m_t[:, None] & (o_c < D)[None, :]
        b_x = tl.load(p_k_rows + o_c[None, :], mask=m_x, other=0.0).to(tl.float32)
    b_score = beta * b_x  # [BT, BC]
    if IS_LAST:
        b_score = tl.where(m_t[:, None], b_score, float("-inf"))
    b_new_peak = tl.maximum(b_peak, tl.max(b_score, 0))
    b_shrink = tl.exp2(b_peak - b_new_peak)
    b_weight = tl.exp2(b_score - b_new_peak[None, :])
    # A key of minus infinity weighs nothing; 0 times it is NaN, so that it shows.
    b_masses = b_masses * b_shrink[None, :] + (b_weight + 0.0 * b_x)
    b_sum = tl.dot(
        tl.trans(b_weight.to(b_v.dtype)), b_v, b_sum * b_shrink[:, None], input_precision=PRECISION
    )
    return b_new_peak, b_masses, b_sum


@triton.jit
def sum_tokens(
    p_k,  # some tokens' keys, one head's [num_tokens, D]
    p_v,  # their values [num_tokens, D]
    p_weight,  # one head's key map, float32 [D, D]; unused without WEIGHT
    beta,
    num_tokens,
    o_c,  # [BC] channels
    stride_kt,
    stride_vt,
    D: tl.constexpr,
    BD: tl.constexpr,
    BC: tl.constexpr,
    BT: tl.constexpr,
    WEIGHT: tl.constexpr,
    PRECISION: tl.constexpr,
    MAP_PRECISION: tl.constexpr,
    UPCAST: tl.constexpr,
):
    """Greatest score, mass and weighted sum of values of some channels: [BC], [BC], [BC, BD].

    Scores are logarithms to base 2. Masses are added up across tokens once, at the end.
    """
    beta *= LOG2_E
    o_t = tl.arange(0, BT)
    p_k_rows = p_k + o_t[:, None] * stride_kt
    p_v_rows = p_v + o_t[:, None] * stride_vt
    b_peak = tl.full([BC], float("-inf"), tl.float32)
    b_masses = tl.zeros([BT, BC], tl.float32)
    b_sum = tl.zeros([BC, BD], tl.float32)
    num_whole = num_tokens // BT * BT
    for i_t in range(0, num_whole, BT):
        b_peak, b_masses, b_sum = sum_step(
            b_peak, b_masses, b_sum, p_k_rows + i_t * stride_kt, p_v_rows + i_t * stride_vt,
            o_t < BT, p_weight, beta, o_c,
            D, BD, BC, BT, False, WEIGHT, PRECISION, MAP_PRECISION, UPCAST,
        )  # fmt: skip
    if num_whole < num_tokens:
        b_peak, b_masses, b_sum = sum_step(
            b_peak, b_masses, b_sum, p_k_rows + num_whole * stride_kt,
            p_v_rows + num_whole * stride_vt, o_t < num_tokens - num_whole, p_weight, beta, o_c,
            D, BD, BC, BT, True, WEIGHT, PRECISION, MAP_PRECISION, UPCAST,
        )  # fmt: skip
    # So a value that is not finite shows in all that is read from the state.
    return b_peak, tl.sum(b_masses, 0) + tl.sum(0.0 * b_sum, 1), b_sum


@triton.jit
def store_state(
    b_peak,  # [BC] greatest score, a logarithm to base 2
    b_mass,  # [BC] sum of 2 ** (score - peak)
    b_sum,  # [BC, BD] sum of 2 ** (score - peak) v
    p_log_mass,  # out: one sequence and head's log s, float32 [D]
    p_value,  # out: the same one's kappa V, any float type [D, D]
    length,
    o_c,  # [BC] channels
    D: tl.constexpr,
    BD: tl.constexpr,
):
    """What is known of all of a sequence's tokens, as its state."""
    o_d = tl.arange(0, BD)
    m_c = o_c < D
    # Without tokens the mass is 0 and the peak -inf: log s is -inf, and the mean is set to 0.
    b_divisor = tl.where(length > 0, b_mass, 1.0)
    tl.store(p_log_mass + o_c, (b_peak + tl.log2(b_divisor)) * LOG_2, mask=m_c)
    b_value = (b_sum / b_divisor[:, None]).to(p_value.dtype.element_ty)
    m_entry = m_c[:, None] & (o_d < D)[None, :]
    tl.store(p_value + o_c[:, None] * D + o_d[None, :], b_value, mask=m_entry)


@triton.jit
def store_part(
    p_part,  # out: what a piece leaves behind, of one head, float32 [D + 2, D]
    b_peak,  # [BC] greatest score: the first row
    b_mass,  # [BC] sum of 2 ** (score - peak): the second
    b_sum,  # [BC, BD] sum of 2 ** (score - peak) v: all others
    o_c,  # [BC] channels
    D: tl.constexpr,
    BD: tl.constexpr,
):
    o_d = tl.arange(0, BD)
    m_c = o_c < D
    tl.store(p_part + o_c, b_peak, mask=m_c)
    tl.store(p_part + D + o_c, b_mass, mask=m_c)
    p_entries = p_part + 2 * D + o_c[:, None] * D + o_d[None, :]
    tl.store(p_entries, b_sum, mask=m_c[:, None] & (o_d < D)[None, :])


# A sequence's result must not depend on its batch, so nothing that varies with the batch may
# choose the code, neither by its value nor by its alignment.
@triton.jit(
    do_not_specialize=[
        "p_beta", "p_cu_seqlens", "num_sequences", "num_heads", "short", "stride_beta_b",
        "stride_beta_h",
    ]
)  # fmt: skip
def lln_state_kernel(
    p_k,  # keys [T, H, D]
    p_v,  # values [T, H, D]
    p_weight,  # key map's weight, float32 [H, D, D]; unused without WEIGHT
    p_bias,  # key map's bias, float32 [H, D]; unused without BIAS
    p_beta,  # float32 [B, H]
    p_cu_seqlens,  # first packed row of every sequence, then T, int32 [B + 1]
    p_log_mass,  # out: log s of sequences of one piece, float32 [B, H, D]
    p_value,  # out: kappa V of sequences of one piece, any float type [B, H, D, D]
    p_parts,  # out: what other pieces leave behind, float32 [slots, H, D + 2, D]
    num_sequences,
    num_heads,
    short,  # sequences of at most this many tokens have their own kernel
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
    BT: tl.constexpr,
    WEIGHT: tl.constexpr,
    BIAS: tl.constexpr,
    PRECISION: tl.constexpr,
    MAP_PRECISION: tl.constexpr,
    UPCAST: tl.constexpr,
):
    # Channel tiles, then heads, vary fastest: neighbours read the same rows.
    NC: tl.constexpr = (D + BC - 1) // BC
    i_program = tl.program_id(0)
    i_c = i_program % NC
    i_h = (i_program // NC % num_heads).to(tl.int64)
    i_slot = i_program // NC // num_heads
    i_b, i_begin, length, i_piece = locate(p_cu_seqlens, i_slot, num_sequences, PIECE, 1, PIECE)
    # An empty sequence still has its first piece, which writes the empty state.
    i_first = i_piece.to(tl.int64) * PIECE
    if ((i_piece > 0) & (i_first >= length)) | (length <= short):
        return

    beta = tl.load(p_beta + i_b * stride_beta_b + i_h * stride_beta_h)
    o_c = i_c * BC + tl.arange(0, BC)
    m_c = o_c < D
    num_tokens = tl.minimum(length - i_first, PIECE).to(tl.int32)
    # Offsets within a piece fit in 32 bits; where it begins need not.
    i_row = i_begin + i_first
    p_k += i_h * stride_kh + i_row * stride_kt
    p_v += i_h * stride_vh + i_row * stride_vt
    b_peak, b_mass, b_sum = sum_tokens(
        p_k, p_v, p_weight + i_h * D * D, beta, num_tokens, o_c, stride_kt, stride_vt,
        D, BD, BC, BT, WEIGHT, PRECISION, MAP_PRECISION, UPCAST,
    )  # fmt: skip

    o_channel = i_h * D + o_c
    if BIAS:
        # A bias multiplies all keys of a channel alike: it moves the peak and nothing else.
        b_peak += beta * LOG2_E * tl.load(p_bias + o_channel, mask=m_c, other=0.0)
    if length <= PIECE:
        o_state = (i_b * num_heads + i_h) * D
        store_state(
            b_peak, b_mass, b_sum, p_log_mass + o_state, p_value + o_state * D, length, o_c, D, BD
        )
    else:
        p_part = p_parts + (i_slot.to(tl.int64) * num_heads + i_h) * ((D + 2) * D)
        store_part(p_part, b_peak, b_mass, b_sum, o_c, D, BD)
