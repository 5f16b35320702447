"""What the backward kernels are compiled for: sizes, branches and precision, by what is asked."""

from __future__ import annotations

from typing import Any

import torch

from kernels.attention.triton_operands import precision
from kernels.attention.triton_tiles import (
    padded_head_dim,
    query_span,
    rows_gradient_tile,
    state_gradient_tile,
)

ADDED_NUMBERS = 1024
"""Numbers of a piece that one program adds up."""


def wide_dtype(dtype: torch.dtype) -> torch.dtype:
    """A gradient summed over a whole sequence outgrows float16."""
    return torch.float32 if dtype == torch.float16 else dtype


def state_gradient_constants(
    head_dim: int,
    dtype: torch.dtype,
    *,
    mix: bool,
    weight: bool,
    bias: bool,
    family: str | None = None,
) -> dict[str, Any]:
    """Everything the first pass is compiled for."""
    tile = state_gradient_tile(head_dim, dtype, weight=weight, family=family)
    return {
        "PIECE": tile.piece,
        "D": head_dim,
        "BD": padded_head_dim(head_dim),
        "BC": tile.channels,
        "BK": tile.columns,
        "BT": tile.tokens,
        "MIX": mix,
        "WEIGHT": weight,
        "BIAS": bias,
        **precision(dtype),
        "num_warps": tile.num_warps,
        "num_stages": tile.num_stages,
    }


def add_pieces_constants(piece: int, size: int) -> dict[str, Any]:
    return {"PIECE": piece, "SIZE": size, "BS": ADDED_NUMBERS}


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
) -> dict[str, Any]:
    """Everything the second pass is compiled for. Without a block size there is no Diag."""
    weight = q_map["weight"] or k_map["weight"]
    tile = rows_gradient_tile(head_dim, dtype, weight=weight, block_size=block_size, family=family)
    one_step = block_size is not None and query_span(block_size, tile.rows).is_one_tile
    return {
        "D": head_dim,
        "BD": padded_head_dim(head_dim),
        "BM": tile.rows,
        "BN": tile.keys,
        "BC": tile.channels,
        "BK": tile.columns,
        "BS": tile.sinks,
        "LLN": lln,
        "DIAG": block_size is not None,
        "Q_WEIGHT": q_map["weight"],
        "Q_BIAS": q_map["bias"],
        "K_WEIGHT": k_map["weight"],
        "K_BIAS": k_map["bias"],
        "ONE_STEP": one_step,
        "SINKS": sinks,
        **precision(dtype),
        "num_warps": tile.num_warps,
        "num_stages": tile.num_stages,
    }


def diag_rows_constants(rows: dict[str, Any]) -> dict[str, Any]:
    """Those of the second pass that the rows' statistics are compiled for as well."""
    names = ("D", "BD", "BM", "BN", "BS", "SINKS", "PRECISION", "UPCAST")
    return {name: rows[name] for name in (*names, "num_warps", "num_stages")}


def add_to_sinks_constants(head_dim: int) -> dict[str, Any]:
    width = padded_head_dim(head_dim)
    return {"D": head_dim, "BD": width, "BT": max(1, 4096 // width)}


def key_map_constants(
    head_dim: int, dtype: torch.dtype, family: str | None = None
) -> dict[str, Any]:
    first_pass = state_gradient_constants(
        head_dim, dtype, mix=False, weight=True, bias=True, family=family
    )
    names = ("PIECE", "D", "BD", "BC", "BK", "BT", "MAP_PRECISION", "UPCAST")
    return {name: first_pass[name] for name in (*names, "num_warps", "num_stages")}
