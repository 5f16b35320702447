# mypy: disable-error-code="no-untyped-def,untyped-decorator,import-untyped"
# Kernels are compiled by Triton: pointers, blocks and constexprs have no Python types.
"""Adds up what the pieces of a sequence left, in their order: for gradients and moments.

Where there are many, those of each group beforehand, so that more programs take fewer steps.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from kernels.attention.gpu.constants import add_groups_constants, add_pieces_constants
from kernels.attention.gpu.groups import find_groups, locate_group, num_group_slots
from kernels.attention.gpu.launch import launch
from kernels.attention.gpu.locate import first_slot


def add_pieces(parts: Tensor, cu_seqlens: Tensor, sums: Tensor, piece: int, num_rows: int) -> None:
    """Writes the sums [B, H, ...] of sequences longer than a piece; the others have theirs.

    `num_rows` are those of the batch.
    """
    num_sequences, num_heads = sums.shape[:2]
    constants = add_pieces_constants(piece, parts[0, 0].numel())
    programs = num_heads * triton.cdiv(constants["SIZE"], constants["BS"])
    common = {"p_parts": parts, "p_cu_seqlens": cu_seqlens, "num_heads": num_heads}
    if num_rows > piece * constants["ONE_LEVEL"]:  # else no sequence has groups
        of_groups = add_groups_constants(constants)
        slots = num_group_slots(num_rows, num_sequences, of_groups["SPAN"])
        launch(
            add_groups_kernel, slots * programs, **common, num_sequences=num_sequences, **of_groups
        )
    launch(add_pieces_kernel, num_sequences * programs, **common, p_sums=sums, **constants)


@triton.jit
def add_parts(
    p_parts,  # some numbers of one head's first part, [BS] pointers
    m_s,  # [BS] numbers that exist
    num_parts,
    stride,  # from one part to the next
    BS: tl.constexpr,
):
    b_sum = tl.zeros([BS], tl.float32)
    # A step is one load, and few programs have all parts to read: many are on their way at once.
    for i_part in tl.range(0, num_parts, num_stages=8):
        b_sum += tl.load(p_parts + i_part * stride, mask=m_s, other=0.0)
    return b_sum


@triton.jit(do_not_specialize=["p_cu_seqlens", "num_sequences", "num_heads"])
def add_groups_kernel(
    p_parts,  # in and out: what every piece left, float32 [slots, H, SIZE]
    p_cu_seqlens,  # first packed row of every sequence, then T, int32 [B + 1]
    num_sequences,
    num_heads,
    PIECE: tl.constexpr,
    SPAN: tl.constexpr,
    ONE_LEVEL: tl.constexpr,
    SIZE: tl.constexpr,
    BS: tl.constexpr,
):
    """The pieces of one group, in their order, into the place of its first."""
    NS: tl.constexpr = (SIZE + BS - 1) // BS
    i_program = tl.program_id(0)
    i_h = i_program // NS % num_heads
    i_slot, num_parts = locate_group(
        p_cu_seqlens, i_program // NS // num_heads, num_sequences, PIECE, SPAN, ONE_LEVEL
    )
    if num_parts < 2:
        return

    o_s = i_program % NS * BS + tl.arange(0, BS)
    m_s = o_s < SIZE
    p_first = p_parts + (i_slot * num_heads + i_h) * SIZE + o_s
    b_sum = add_parts(p_first, m_s, num_parts, num_heads.to(tl.int64) * SIZE, BS)
    tl.debug_barrier()  # the first piece has been read
    tl.store(p_first, b_sum, mask=m_s)


@triton.jit(do_not_specialize=["p_cu_seqlens", "num_heads"])
def add_pieces_kernel(
    p_parts,  # what every piece left, float32 [slots, H, SIZE]
    p_cu_seqlens,  # first packed row of every sequence, then T, int32 [B + 1]
    p_sums,  # out: any float type [B, H, SIZE]
    num_heads,
    PIECE: tl.constexpr,
    ONE_LEVEL: tl.constexpr,
    SIZE: tl.constexpr,
    BS: tl.constexpr,
):
    """The groups of one sequence, in their order; a sequence of one piece is done already."""
    NS: tl.constexpr = (SIZE + BS - 1) // BS
    i_program = tl.program_id(0).to(tl.int64)
    i_h = i_program // NS % num_heads
    i_b = i_program // NS // num_heads
    i_begin = tl.load(p_cu_seqlens + i_b).to(tl.int64)
    length = tl.load(p_cu_seqlens + i_b + 1).to(tl.int64) - i_begin
    if length <= PIECE:
        return

    num_pieces, size = find_groups(length, PIECE, ONE_LEVEL)
    o_s = i_program % NS * BS + tl.arange(0, BS)
    m_s = o_s < SIZE
    i_slot = first_slot(i_begin, i_b, PIECE, 1, PIECE)
    stride = size.to(tl.int64) * num_heads * SIZE
    p_first = p_parts + (i_slot * num_heads + i_h) * SIZE + o_s
    b_sum = add_parts(p_first, m_s, (num_pieces + size - 1) // size, stride, BS)
    p_sum = p_sums + (i_b * num_heads + i_h) * SIZE + o_s
    tl.store(p_sum, b_sum.to(p_sum.dtype.element_ty), mask=m_s)
