# mypy: disable-error-code="no-untyped-def,untyped-decorator,import-untyped"
# Kernels are compiled by Triton: pointers, blocks and constexprs have no Python types.
"""Adds up what the pieces of a sequence left, in their order: for gradients and moments."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from kernels.attention.gpu.constants import add_pieces_constants
from kernels.attention.gpu.launch import launch
from kernels.attention.gpu.locate import first_slot


def add_pieces(parts: Tensor, cu_seqlens: Tensor, sums: Tensor, piece: int) -> None:
    """Writes the sums [B, H, ...] of sequences longer than a piece; the others have theirs."""
    num_sequences, num_heads = sums.shape[:2]
    constants = add_pieces_constants(piece, parts[0, 0].numel())
    launch(
        add_pieces_kernel,
        num_sequences * num_heads * triton.cdiv(constants["SIZE"], constants["BS"]),
        p_parts=parts,
        p_cu_seqlens=cu_seqlens,
        p_sums=sums,
        num_heads=num_heads,
        **constants,
    )


@triton.jit(do_not_specialize=["p_cu_seqlens", "num_heads"])
def add_pieces_kernel(
    p_parts,  # what every piece left, float32 [slots, H, SIZE]
    p_cu_seqlens,  # first packed row of every sequence, then T, int32 [B + 1]
    p_sums,  # out: any float type [B, H, SIZE]
    num_heads,
    PIECE: tl.constexpr,
    SIZE: tl.constexpr,
    BS: tl.constexpr,
):
    """The pieces of one sequence, in their order; a sequence of one piece is done already."""
    NS: tl.constexpr = (SIZE + BS - 1) // BS
    i_program = tl.program_id(0).to(tl.int64)
    i_h = i_program // NS % num_heads
    i_b = i_program // NS // num_heads
    i_begin = tl.load(p_cu_seqlens + i_b).to(tl.int64)
    length = tl.load(p_cu_seqlens + i_b + 1).to(tl.int64) - i_begin
    if length <= PIECE:
        return

    o_s = i_program % NS * BS + tl.arange(0, BS)
    m_s = o_s < SIZE
    i_slot = first_slot(i_begin, i_b, PIECE, 1, PIECE)
    b_sum = tl.zeros([BS], tl.float32)
    num_pieces = ((length + PIECE - 1) // PIECE).to(tl.int32)
    # A step is one load, and few programs have all pieces to read: many are on their way at once.
    for i_piece in tl.range(0, num_pieces, num_stages=8):
        o_part = ((i_slot + i_piece) * num_heads + i_h) * SIZE
        b_sum += tl.load(p_parts + o_part + o_s, mask=m_s, other=0.0)
    p_sum = p_sums + (i_b * num_heads + i_h) * SIZE + o_s
    tl.store(p_sum, b_sum.to(p_sum.dtype.element_ty), mask=m_s)
