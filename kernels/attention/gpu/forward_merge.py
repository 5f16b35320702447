# mypy: disable-error-code="no-untyped-def,untyped-decorator,import-untyped"
# Kernels are compiled by Triton: pointers, blocks and constexprs have no Python types.
"""The merge: what the state pass left of the pieces of a long sequence becomes one LLNState.

Pieces are merged in their order, each sum relative to the greatest score so far. Where there are
many, a launch merges those of each group beforehand, so that more programs take fewer steps.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.attention.gpu.forward_state import LOG_2, store_part
from kernels.attention.gpu.groups import find_groups, locate_group
from kernels.attention.gpu.locate import first_slot


@triton.jit
def merge_parts(
    p_part,  # the first, of one head, as `store_part` leaves it: float32 [D + 2, D]
    num_parts,
    stride,  # from one to the next
    o_c,  # [BC] channels
    D: tl.constexpr,
    BD: tl.constexpr,
    BC: tl.constexpr,
    NUM_STAGES: tl.constexpr,
):
    """Some channels of some parts of one sequence: peak and mass [BC], sum [BC, BD]."""
    o_d = tl.arange(0, BD)
    m_c = o_c < D
    m_entry = m_c[:, None] & (o_d < D)[None, :]
    o_entry = (o_c[:, None] + 2) * D + o_d[None, :]
    b_peak = tl.full([BC], float("-inf"), tl.float32)
    b_mass = tl.zeros([BC], tl.float32)
    b_sum = tl.zeros([BC, BD], tl.float32)
    for i_part in tl.range(0, num_parts, num_stages=NUM_STAGES):
        o_part = i_part * stride
        b_part_peak = tl.load(p_part + o_part + o_c, mask=m_c, other=0.0)
        b_part_mass = tl.load(p_part + o_part + D + o_c, mask=m_c, other=0.0)
        b_part_sum = tl.load(p_part + o_part + o_entry, mask=m_entry, other=0.0)
        b_new_peak = tl.maximum(b_peak, b_part_peak)
        b_shrink = tl.exp2(b_peak - b_new_peak)
        b_part_shrink = tl.exp2(b_part_peak - b_new_peak)
        b_mass = b_mass * b_shrink + b_part_mass * b_part_shrink
        b_sum = b_sum * b_shrink[:, None] + b_part_sum * b_part_shrink[:, None]
        b_peak = b_new_peak
    return b_peak, b_mass, b_sum


@triton.jit(do_not_specialize=["p_cu_seqlens", "num_sequences", "num_heads"])
def merge_groups_kernel(
    p_parts,  # in and out: what pieces left behind, float32 [slots, H, D + 2, D]
    p_cu_seqlens,  # first packed row of every sequence, then T, int32 [B + 1]
    num_sequences,
    num_heads,
    PIECE: tl.constexpr,
    SPAN: tl.constexpr,
    ONE_LEVEL: tl.constexpr,
    D: tl.constexpr,
    BD: tl.constexpr,
    BC: tl.constexpr,
    NUM_STAGES: tl.constexpr,
):
    """The pieces of one group, in their order, into the place of its first."""
    NC: tl.constexpr = (D + BC - 1) // BC
    i_program = tl.program_id(0)
    i_h = (i_program // NC % num_heads).to(tl.int64)
    o_c = i_program % NC * BC + tl.arange(0, BC)
    i_slot, num_parts = locate_group(
        p_cu_seqlens, i_program // NC // num_heads, num_sequences, PIECE, SPAN, ONE_LEVEL
    )
    if num_parts < 2:
        return

    stride = num_heads.to(tl.int64) * ((D + 2) * D)
    p_part = p_parts + i_slot * stride + i_h * ((D + 2) * D)
    b_peak, b_mass, b_sum = merge_parts(p_part, num_parts, stride, o_c, D, BD, BC, NUM_STAGES)
    # Threads that share a channel have read the first piece before one of them writes there.
    tl.debug_barrier()
    store_part(p_part, b_peak, b_mass, b_sum, o_c, D, BD)


@triton.jit(do_not_specialize=["p_cu_seqlens", "num_heads"])
def merge_pieces_kernel(
    p_parts,  # what pieces left behind, float32 [slots, H, D + 2, D]
    p_cu_seqlens,  # first packed row of every sequence, then T, int32 [B + 1]
    p_log_mass,  # out: log s, float32 [B, H, D]
    p_value,  # out: kappa V, any float type [B, H, D, D]
    num_heads,
    PIECE: tl.constexpr,
    ONE_LEVEL: tl.constexpr,
    D: tl.constexpr,
    BD: tl.constexpr,
    BC: tl.constexpr,
    NUM_STAGES: tl.constexpr,
):
    """The groups of one sequence, in their order; a sequence of one piece is done already."""
    NC: tl.constexpr = (D + BC - 1) // BC
    i_program = tl.program_id(0).to(tl.int64)
    i_h = i_program // NC % num_heads
    i_b = i_program // NC // num_heads
    i_begin = tl.load(p_cu_seqlens + i_b).to(tl.int64)
    length = tl.load(p_cu_seqlens + i_b + 1).to(tl.int64) - i_begin
    if length <= PIECE:
        return

    num_pieces, size = find_groups(length, PIECE, ONE_LEVEL)
    o_c = i_program % NC * BC + tl.arange(0, BC)
    i_slot = first_slot(i_begin, i_b, PIECE, 1, PIECE)
    stride = num_heads.to(tl.int64) * ((D + 2) * D)
    b_peak, b_mass, b_sum = merge_parts(
        p_parts + i_slot * stride + i_h * ((D + 2) * D), (num_pieces + size - 1) // size,
        size * stride, o_c, D, BD, BC, NUM_STAGES,
    )  # fmt: skip

    # Padded channels have no mass; only real ones are stored.
    o_d = tl.arange(0, BD)
    m_c = o_c < D
    o_channel = (i_b * num_heads + i_h) * D + o_c
    b_mass = tl.where(m_c, b_mass, 1.0)
    tl.store(p_log_mass + o_channel, (b_peak + tl.log2(b_mass)) * LOG_2, mask=m_c)
    p_entries = p_value + o_channel[:, None] * D + o_d[None, :]
    b_value = (b_sum / b_mass[:, None]).to(p_value.dtype.element_ty)
    tl.store(p_entries, b_value, mask=m_c[:, None] & (o_d < D)[None, :])
