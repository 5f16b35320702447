# mypy: disable-error-code="no-untyped-def,untyped-decorator,import-untyped"
# Kernels are compiled by Triton: pointers, blocks and constexprs have no Python types.
"""Which rows a program works on, found on the device from cu_seqlens alone.

Every sequence is cut into tiles counted from its own start: `tiles_per_span` tiles of at most
`rows_per_tile` tokens for each `span` of its tokens. A sequence that begins at packed row x owns
the slots from f(x) + its index on, where f(x) = x // span * tiles_per_span + x % span //
rows_per_tile. That never gives a sequence fewer slots than it has tiles (f is superadditive, and
the index adds one for the remainder). So the host sizes a launch from T and B without reading a
length; surplus slots find nothing to do and return. Where the host knows the lengths of several
sequences, it lists the tiles of a batch once, and the programs of the output pass read the list.

A packed row fits in 32 bits, because cu_seqlens does. An offset in a tensor need not: it is a row
times a stride in 64 bits, which is one instruction as long as both are of 32 bits.
"""

from __future__ import annotations

import triton
import triton.language as tl


def num_slots(
    num_rows: int, num_sequences: int, span: int, tiles_per_span: int, rows_per_tile: int
) -> int:
    """Slots of the whole batch: what the host launches."""
    return num_rows // span * tiles_per_span + num_rows % span // rows_per_tile + num_sequences


@triton.jit
def first_slot(i_begin, i_sequence, span, tiles_per_span, rows_per_tile):
    return i_begin // span * tiles_per_span + i_begin % span // rows_per_tile + i_sequence


@triton.jit
def find_sequence(
    p_cu_seqlens,  # first packed row of every sequence, then T [B + 1]
    i_slot,
    num_sequences,
    span,
    tiles_per_span,
    rows_per_tile,
):
    """The last sequence whose first slot is not beyond i_slot."""
    BB: tl.constexpr = 128
    count = tl.full([], 0, tl.int32)
    # The first sequence's is the first of all, so that a single one needs no search.
    for i_b in range(1, num_sequences, BB):
        o_b = i_b + tl.arange(0, BB)
        m_b = o_b < num_sequences
        b_begin = tl.load(p_cu_seqlens + o_b, mask=m_b, other=0)
        m_b = m_b & (first_slot(b_begin, o_b, span, tiles_per_span, rows_per_tile) <= i_slot)
        count += tl.sum(m_b.to(tl.int32), 0)
    return count


@triton.jit
def locate(
    p_cu_seqlens,  # first packed row of every sequence, then T [B + 1]
    i_slot,
    num_sequences,
    span,
    tiles_per_span,
    rows_per_tile,
):
    """The slot's sequence, the sequence's first packed row and length, the tile within it."""
    i_b = find_sequence(p_cu_seqlens, i_slot, num_sequences, span, tiles_per_span, rows_per_tile)
    i_begin = tl.load(p_cu_seqlens + i_b)
    length = tl.load(p_cu_seqlens + i_b + 1) - i_begin
    i_tile = i_slot - first_slot(i_begin, i_b, span, tiles_per_span, rows_per_tile)
    return i_b, i_begin, length, i_tile


@triton.jit
def locate_tile(
    p_cu_seqlens,  # first packed row of every sequence, then T [B + 1]
    p_listed,  # a batch's tiles as `tile_list` lists them [num_listed, 4]
    num_listed,  # 0 where there is no list
    i_slot,
    num_sequences,
    span,
    tiles_per_span,
    rows_per_tile,
):
    """The same, from the list where there is one."""
    if num_listed > 0:
        p_tile = p_listed + i_slot * 4
        is_listed = i_slot < num_listed
        i_b = tl.load(p_tile, mask=is_listed, other=0)
        i_begin = tl.load(p_tile + 1, mask=is_listed, other=0)
        length = tl.load(p_tile + 2, mask=is_listed, other=0)
        i_tile = tl.load(p_tile + 3, mask=is_listed, other=0)
    else:
        i_b, i_begin, length, i_tile = locate(
            p_cu_seqlens, i_slot, num_sequences, span, tiles_per_span, rows_per_tile
        )
    return i_b, i_begin, length, i_tile


@triton.jit
def head_and_slot():
    """The head and slot of a program of `programs_by_head`."""
    return tl.program_id(0), tl.program_id(2) * tl.num_programs(1) + tl.program_id(1)


@triton.jit
def load_rows(p_rows, m_rows, D: tl.constexpr, BD: tl.constexpr, UPCAST: tl.constexpr):
    """Whole rows [BN, BD], zero where there are none."""
    o_d = tl.arange(0, BD)
    b_rows = tl.load(p_rows + o_d[None, :], mask=m_rows[:, None] & (o_d < D)[None, :], other=0.0)
    if UPCAST:
        b_rows = b_rows.to(tl.float32)
    return b_rows


@triton.jit
def load_whole_rows(p_rows, D: tl.constexpr, BD: tl.constexpr, UPCAST: tl.constexpr):
    """Rows that all exist [BN, BD]."""
    o_d = tl.arange(0, BD)
    b_rows = tl.load(p_rows + o_d[None, :], mask=(o_d < D)[None, :], other=0.0)
    if UPCAST:
        b_rows = b_rows.to(tl.float32)
    return b_rows


@triton.jit
def sinks_outside(o_s, o_first, i_span, length, block_size, first_sinks, last_sinks):
    """Positions of some sinks, which of them exist, and which each query sees outside its block.

    `o_s` counts the sinks, first ones first; `o_first` is where the block of each query begins,
    counted from the span's first token.
    """
    is_first = o_s < first_sinks
    o_n = tl.where(is_first, o_s, length - last_sinks + o_s - first_sinks)
    # Where a sequence is shorter than its sinks, the last ones give way to the first.
    m_n = (o_s < first_sinks + last_sinks) & (o_n < length) & (is_first | (o_n >= first_sinks))
    o_block_n = (o_n - i_span)[None, :] - o_first[:, None]
    m_outside = (o_block_n < 0) | (o_block_n >= block_size)
    return o_n.to(tl.int64), m_n, m_n[None, :] & m_outside
