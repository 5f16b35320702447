"""What each kernel is compiled for: sizes, branches and precision, never a length or a batch.

Every function returns the compile-time arguments of one kernel, its warps and stages included. The
forward's are kept, because every call asks for them: callers must not change what they get.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
import triton  # type: ignore[import-untyped]

from kernels.attention.gpu import groups
from kernels.attention.gpu.tiles import (
    Span,
    merge_tile,
    output_tile,
    padded_head_dim,
    query_span,
    rows_gradient_tile,
    softmax_tile,
    state_gradient_tile,
    state_tile,
)

Constants = dict[str, Any]

ADDED_NUMBERS = 1024
"""Numbers of a piece that one program adds up."""


KEPT: list[Any] = []
"""Cached functions that depend on tile sizes."""


def forget_constants() -> None:
    """Where tile sizes have changed."""
    for kept in KEPT:
        kept.cache_clear()


def precision(dtype: torch.dtype) -> Constants:
    return {
        # Three tf32 products are as exact as one float32 product and run on tensor cores; "ieee"
        # leaves them, keeps whole operands in registers and spills. 16-bit rows ignore this.
        "PRECISION": "tf32x3",
        # A 16-bit number is exact in tf32, whose rounding of the weight is below the rows' own.
        "MAP_PRECISION": "tf32x3" if dtype == torch.float32 else "tf32",
        # Triton's interpreter cannot multiply bfloat16.
        "UPCAST": triton.knobs.runtime.interpret and dtype == torch.bfloat16,
    }


def wide_dtype(dtype: torch.dtype) -> torch.dtype:
    """A gradient summed over a whole sequence outgrows float16."""
    return torch.float32 if dtype == torch.float16 else dtype


@cache
def state_constants(
    head_dim: int, dtype: torch.dtype, *, weight: bool, bias: bool, family: str | None = None
) -> Constants:
    tile = state_tile(head_dim, dtype, weight=weight, family=family)
    return {
        **_head(head_dim),
        "PIECE": tile.piece,
        "BC": tile.channels,
        "BT": tile.tokens,
        "WEIGHT": weight,
        "BIAS": bias,
        **precision(dtype),
        **_schedule(tile),
    }


@cache
def merge_constants(head_dim: int, piece: int) -> Constants:
    tile = merge_tile(head_dim)
    return {
        **_head(head_dim),
        "PIECE": piece,
        "ONE_LEVEL": groups.ONE_LEVEL,
        "BC": tile.channels,
        "NUM_STAGES": tile.num_stages,
        "num_warps": tile.num_warps,
    }


@cache
def merge_groups_constants(head_dim: int, piece: int) -> Constants:
    return merge_constants(head_dim, piece) | _group_span(piece)


@cache
def output_constants(
    head_dim: int,
    dtype: torch.dtype,
    *,
    block_size: int | None,
    lln: bool,
    sinks: bool,
    weight: bool,
    bias: bool,
    gate: bool = False,
    mix_scale: bool = False,
    outside: bool = False,
    family: str | None = None,
    tall: bool = True,
) -> Constants:
    """Without a block size there is no Diag."""
    tile = output_tile(
        head_dim, dtype, weight=weight, block_size=block_size, family=family, tall=tall
    )
    span = query_span(block_size or tile.queries, tile.queries)
    one_step = block_size is not None and span.is_one_tile
    return {
        **_head(head_dim),
        "BM": tile.queries,
        # One step must show a tile all the blocks it spans.
        "BN": tile.queries if one_step else tile.keys,
        "BC": tile.channels,
        "BS": tile.sinks,
        "LLN": lln,
        "DIAG": block_size is not None,
        "WEIGHT": weight,
        "BIAS": bias,
        **_cut(span, block_size),
        "ONE_BLOCK": span.tokens == block_size,
        "ONE_STEP": one_step,
        "SINKS": sinks,
        "OUTSIDE": outside,
        "GATE": gate,
        "MIX_SCALE": mix_scale,
        "LIMIT": 0.0 if one_step else _mass_limit(head_dim, dtype),
        **precision(dtype),
        **_schedule(tile),
    }


@cache
def softmax_constants(head_dim: int, dtype: torch.dtype, *, family: str | None = None) -> Constants:
    tile = softmax_tile(head_dim, dtype, family=family)
    return {
        **_head(head_dim),
        "BM": tile.queries,
        "BN": tile.keys,
        **_only(precision(dtype), "PRECISION", "UPCAST"),
        **_schedule(tile),
    }


KEPT += [
    state_constants,
    merge_constants,
    merge_groups_constants,
    output_constants,
    softmax_constants,
]


def short_constants(
    head_dim: int,
    dtype: torch.dtype,
    *,
    block_size: int | None,
    sinks: bool,
    q_map: dict[str, bool],
    k_map: dict[str, bool],
    gate: bool = False,
    mix_scale: bool = False,
) -> Constants:
    """Those of the state pass and of the output pass, in one program.

    The default tiles on any device: tiles that were measured apart need not fit together.
    """
    state = state_constants(head_dim, dtype, family=None, **k_map)
    output = output_constants(
        *(head_dim, dtype),
        block_size=block_size,
        lln=True,
        sinks=sinks,
        family=None,
        tall=False,  # most short sequences have fewer rows
        gate=gate,
        mix_scale=mix_scale,
        **q_map,
    )
    dropped = ("LLN", "WEIGHT", "BIAS", "OUTSIDE", "TILES", "maxnreg")
    return {name: value for name, value in output.items() if name not in dropped} | {
        # Both passes share one program's registers.
        "BT": min(state["BT"], 32) if k_map["weight"] else state["BT"],
        "STATE_BC": state["BC"],
        **_maps(q_map, k_map),
    }


def state_gradient_constants(
    head_dim: int,
    dtype: torch.dtype,
    *,
    mix: bool,
    weight: bool,
    bias: bool,
    family: str | None = None,
) -> Constants:
    tile = state_gradient_tile(head_dim, dtype, weight=weight, family=family)
    return {
        **_head(head_dim),
        "PIECE": tile.piece,
        "BC": tile.channels,
        "BK": tile.columns,
        "BT": tile.tokens,
        "MIX": mix,
        "WEIGHT": weight,
        "BIAS": bias,
        **precision(dtype),
        **_schedule(tile),
    }


def add_pieces_constants(piece: int, size: int) -> Constants:
    return {"PIECE": piece, "ONE_LEVEL": groups.ONE_LEVEL, "SIZE": size, "BS": ADDED_NUMBERS}


def add_groups_constants(pieces: Constants) -> Constants:
    return pieces | _group_span(pieces["PIECE"])


def rows_gradient_constants(
    head_dim: int,
    dtype: torch.dtype,
    *,
    block_size: int | None,
    lln: bool,
    sinks: bool,
    q_map: dict[str, bool],
    k_map: dict[str, bool],
    family: str | None = None,
) -> Constants:
    """Without a block size there is no Diag."""
    weight = q_map["weight"] or k_map["weight"]
    tile = rows_gradient_tile(head_dim, dtype, weight=weight, block_size=block_size, family=family)
    span = query_span(block_size or tile.rows, tile.rows)
    return {
        **_head(head_dim),
        "BM": tile.rows,
        "BN": tile.keys,
        "BC": tile.channels,
        "BK": tile.columns,
        "BS": tile.sinks,
        "LLN": lln,
        "DIAG": block_size is not None,
        **_maps(q_map, k_map),
        **_cut(span, block_size),
        "ONE_STEP": block_size is not None and span.is_one_tile,
        "SINKS": sinks,
        **precision(dtype),
        **_schedule(tile),
    }


def diag_rows_constants(rows: Constants) -> Constants:
    """Some of the rows' gradient: both must cut the rows alike."""
    names = ("D", "BD", "BM", "BN", "BS", "LLN", "SINKS", "PRECISION", "UPCAST")
    return _only(rows, *names, "BLOCK", "SPAN", "TILES", "ROWS", "num_warps", "num_stages")


def add_to_sinks_constants(head_dim: int) -> Constants:
    return {**_head(head_dim), "BT": max(1, 4096 // padded_head_dim(head_dim))}


def key_map_constants(head_dim: int, dtype: torch.dtype, family: str | None = None) -> Constants:
    first_pass = state_gradient_constants(
        head_dim, dtype, mix=False, weight=True, bias=True, family=family
    )
    names = ("PIECE", "D", "BD", "BC", "BK", "BT", "MAP_PRECISION", "UPCAST")
    return _only(first_pass, *names, "num_warps", "num_stages")


def _mass_limit(head_dim: int, dtype: torch.dtype) -> float:
    """Greatest mass that Diag may have under a peak that stays; 0 where the peak follows scores.

    Weights and their products with values must not overflow. Registers do not hold the widest heads
    both ways.
    """
    if padded_head_dim(head_dim) > 128:
        return 0.0
    return 2.0**15 if dtype == torch.float16 else 2.0**60


def _group_span(piece: int) -> Constants:
    """Tokens of the smallest group."""
    return {"SPAN": piece * groups.group_pieces(groups.ONE_LEVEL + 1)}


def _head(head_dim: int) -> Constants:
    return {"D": head_dim, "BD": padded_head_dim(head_dim)}


def _cut(span: Span, block_size: int | None) -> Constants:
    """Divided by at compile time: at run time that takes a program a hundred instructions."""
    return {
        "BLOCK": block_size or span.tokens,
        "SPAN": span.tokens,
        "TILES": span.tiles,
        "ROWS": span.rows,
    }


def _maps(q_map: dict[str, bool], k_map: dict[str, bool]) -> Constants:
    return {
        "Q_WEIGHT": q_map["weight"],
        "Q_BIAS": q_map["bias"],
        "K_WEIGHT": k_map["weight"],
        "K_BIAS": k_map["bias"],
    }


def _schedule(tile: Any) -> Constants:
    schedule = {"num_warps": tile.num_warps, "num_stages": tile.num_stages}
    registers = getattr(tile, "max_registers", None)
    return schedule if registers is None else schedule | {"maxnreg": registers}


def _only(constants: Constants, *names: str) -> Constants:
    return {name: constants[name] for name in names}
