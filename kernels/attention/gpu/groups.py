# mypy: disable-error-code="no-untyped-def,untyped-decorator,import-untyped"
# Kernels are compiled by Triton: pointers, blocks and constexprs have no Python types.
"""How the pieces of a long sequence are put together: those of each group first, then the groups.

A sequence of n pieces has groups of about sqrt(n), so no program takes more than about 2 sqrt(n)
steps one after the other, where a single level would take n. The groups depend on the sequence's
own length, in integers alone: no batch and no device moves a boundary. What a group makes takes the
place of its first piece.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.attention.gpu.locate import first_slot, locate, num_slots

ONE_LEVEL = 16
"""Up to this many pieces are added in one level: a second would save less than its launch costs."""

DOUBLINGS = tl.constexpr(12)
"""No more are needed for pieces of 64 tokens, in as many tokens as 32 bits count."""


def group_pieces(num_pieces: int) -> int:
    """Pieces of a group: the least power of two from sqrt(n / 2) on. 1 is the piece itself."""
    size = 1
    while num_pieces > ONE_LEVEL and 2 * size * size < num_pieces:
        size *= 2
    return size


def num_group_slots(num_rows: int, num_sequences: int, span: int) -> int:
    """Slots for the groups of a batch; `span` is the tokens of the smallest group."""
    return num_slots(num_rows, num_sequences, span, 1, span)


@triton.jit
def find_groups(length, PIECE: tl.constexpr, ONE_LEVEL: tl.constexpr):
    """The pieces of a sequence, and those of each of its groups, as `group_pieces` has them."""
    num_pieces = ((length.to(tl.int64) + PIECE - 1) // PIECE).to(tl.int32)
    size = tl.full([], 1, tl.int32)
    for _ in tl.static_range(DOUBLINGS):
        size = tl.where((num_pieces > ONE_LEVEL) & (2 * size * size < num_pieces), 2 * size, size)
    return num_pieces, size


@triton.jit
def locate_group(
    p_cu_seqlens,  # first packed row of every sequence, then T [B + 1]
    i_slot,
    num_sequences,
    PIECE: tl.constexpr,
    SPAN: tl.constexpr,
    ONE_LEVEL: tl.constexpr,
):
    """The slot of a group's first piece, and its pieces; of a slot without a group not even two.

    There is a slot for every SPAN tokens, and the first of those in a group has it.
    """
    i_b, i_begin, length, i_span = locate(p_cu_seqlens, i_slot, num_sequences, SPAN, 1, SPAN)
    num_pieces, size = find_groups(length, PIECE, ONE_LEVEL)
    i_piece = i_span * (SPAN // PIECE)
    size = tl.where(i_piece % size == 0, size, 0)
    i_first = first_slot(i_begin, i_b, PIECE, 1, PIECE) + i_piece
    return i_first.to(tl.int64), tl.minimum(size, num_pieces - i_piece)
