# mypy: disable-error-code="no-untyped-def,untyped-decorator,import-untyped"
# Kernels are compiled by Triton: pointers, blocks and constexprs have no Python types.
"""What the tiles of a sequence leave behind, added up in their order."""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.attention.gpu.locate import first_slot


@triton.jit
def num_tiles(length, span, tiles_per_span, rows_per_tile):
    """The tiles of a sequence that hold tokens; they come first among its slots."""
    rest = length % span
    return length // span * tiles_per_span + (rest + rows_per_tile - 1) // rows_per_tile


@triton.jit(
    do_not_specialize=[
        "p_cu_seqlens", "num_heads", "span", "tiles_per_span", "rows_per_tile",
    ]
)  # fmt: skip
def add_tiles_kernel(
    p_tiles,  # a number a tile, float32 [slots, H]
    p_cu_seqlens,  # first packed row of every sequence, then T, int32 [B + 1]
    p_sums,  # out: float32 [B, H]
    num_heads,
    span,
    tiles_per_span,
    rows_per_tile,
    BT: tl.constexpr,
):
    """One number a tile, added up by sequence and head."""
    i_program = tl.program_id(0).to(tl.int64)
    i_h = i_program % num_heads
    i_b = i_program // num_heads
    i_begin = tl.load(p_cu_seqlens + i_b).to(tl.int64)
    length = tl.load(p_cu_seqlens + i_b + 1).to(tl.int64) - i_begin
    tiles = num_tiles(length, span, tiles_per_span, rows_per_tile).to(tl.int32)
    p_tiles += first_slot(i_begin, i_b, span, tiles_per_span, rows_per_tile) * num_heads + i_h
    b_sum = tl.zeros([BT], tl.float32)
    for i_t in range(0, tiles, BT):
        o_t = i_t + tl.arange(0, BT)
        b_sum += tl.load(p_tiles + o_t.to(tl.int64) * num_heads, mask=o_t < tiles, other=0.0)
    tl.store(p_sums + i_program, tl.sum(b_sum, 0))


@triton.jit(
    do_not_specialize=[
        "p_cu_seqlens", "num_heads", "span", "tiles_per_span", "rows_per_tile", "first_sinks",
        "last_sinks",
    ]
)  # fmt: skip
def add_to_sinks_kernel(
    p_sink,  # what every tile adds to its sequence's sinks, float32 [slots, H, sinks, D]
    p_rows,  # in and out: gradient of the rows [T, H, D], a row's heads side by side
    p_cu_seqlens,  # first packed row of every sequence, then T, int32 [B + 1]
    num_heads,
    span,
    tiles_per_span,
    rows_per_tile,
    first_sinks,
    last_sinks,
    stride_ot,
    D: tl.constexpr,
    BD: tl.constexpr,
    BT: tl.constexpr,
):
    """The gradient of one sink, with what the queries outside its block add to it."""
    num_sinks = first_sinks + last_sinks
    i_program = tl.program_id(0).to(tl.int64)
    i_s = i_program % num_sinks
    i_h = i_program // num_sinks % num_heads
    i_b = i_program // num_sinks // num_heads
    i_begin = tl.load(p_cu_seqlens + i_b).to(tl.int64)
    length = tl.load(p_cu_seqlens + i_b + 1).to(tl.int64) - i_begin
    is_first = i_s < first_sinks
    i_n = tl.where(is_first, i_s, length - last_sinks + i_s - first_sinks)
    if (i_n >= length) | ((i_s >= first_sinks) & (i_n < first_sinks)):
        return

    tiles = num_tiles(length, span, tiles_per_span, rows_per_tile).to(tl.int32)
    i_slot = first_slot(i_begin, i_b, span, tiles_per_span, rows_per_tile)
    p_sink += ((i_slot * num_heads + i_h) * num_sinks + i_s) * D
    o_d = tl.arange(0, BD)
    m_d = o_d < D
    b_sum = tl.zeros([BT, BD], tl.float32)
    for i_t in range(0, tiles, BT):
        o_t = i_t + tl.arange(0, BT)
        p_tiles = p_sink + o_t[:, None].to(tl.int64) * num_heads * num_sinks * D + o_d[None, :]
        b_sum += tl.load(p_tiles, mask=(o_t < tiles)[:, None] & m_d[None, :], other=0.0)
    p_row = p_rows + (i_begin + i_n) * stride_ot + i_h * D + o_d
    b_row = tl.load(p_row, mask=m_d, other=0.0).to(tl.float32) + tl.sum(b_sum, 0)
    tl.store(p_row, b_row.to(p_rows.dtype.element_ty), mask=m_d)
