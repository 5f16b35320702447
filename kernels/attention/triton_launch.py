"""Launches the Triton kernels: tile sizes, grids, buffers. Nothing here waits for the device."""

from __future__ import annotations

import math
from typing import Any

import torch
import triton  # type: ignore[import-untyped]
from torch import Tensor

from kernels.attention.state import LLNState
from kernels.attention.triton_operands import (
    Map,
    device_of,
    launch,
    map_flags,
    map_operands,
    precision,
    row_strides,
    unit_stride,
)
from kernels.attention.triton_output import lln_diag_kernel
from kernels.attention.triton_slots import num_slots
from kernels.attention.triton_state import lln_state_kernel, merge_pieces_kernel
from kernels.attention.triton_tiles import (
    merge_tile,
    output_tile,
    padded_head_dim,
    query_span,
    state_tile,
)

SUPPORTED_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def attention_forward(
    q: Tensor,  # [T, H, D]
    k: Tensor,
    v: Tensor,
    *,
    cu_seqlens: Tensor,  # int32 [B + 1]
    alpha: Tensor | None = None,  # float32 [B, H]; None without LLN
    beta: Tensor | None = None,  # float32 [B, H]; None without LLN
    mix: Tensor | None = None,  # float32 [H] or [T, H]; None where there is one branch
    block_size: int | None = None,  # None without Diag
    num_sinks: tuple[int, int] = (0, 0),
    q_map: Map | None = None,
    k_map: Map | None = None,
    keep_state: bool = False,
) -> tuple[Tensor, LLNState | None]:
    """mix * LLN + (1 - mix) * Diag, or one of them; the state too where a gradient will want it."""
    state = None
    if beta is not None:
        # Nobody else reads this state: it is kept in the dtype that the output pass multiplies in.
        state = _state(k, v, beta, cu_seqlens, k_map, value_dtype=q.dtype)
    out = _output(
        q, k, v, state=state, alpha=alpha, mix=mix, cu_seqlens=cu_seqlens,
        block_size=block_size, num_sinks=num_sinks, q_map=q_map,
    )  # fmt: skip
    return out, state if keep_state else None


def lln_state_forward(
    k: Tensor, v: Tensor, *, beta: Tensor, cu_seqlens: Tensor, k_map: Map | None
) -> LLNState:
    return _state(k, v, beta, cu_seqlens, k_map, value_dtype=torch.float32)


def lln_read_forward(
    q: Tensor, state: LLNState, *, alpha: Tensor, cu_seqlens: Tensor, q_map: Map | None
) -> Tensor:
    return _output(q, state=state, alpha=alpha, cu_seqlens=cu_seqlens, q_map=q_map)


def _state(
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    cu_seqlens: Tensor,
    k_map: Map | None,
    *,
    value_dtype: torch.dtype,
) -> LLNState:
    num_rows, num_heads, head_dim = k.shape
    num_sequences = cu_seqlens.numel() - 1
    flags = map_flags(k_map)
    tile = state_tile(head_dim, k.dtype, weight=flags["weight"])
    k, v = unit_stride(k), unit_stride(v)
    state = LLNState(
        k.new_empty(num_sequences, num_heads, head_dim, dtype=torch.float32),
        k.new_empty(num_sequences, num_heads, head_dim, head_dim, dtype=value_dtype),
    )
    slots = num_slots(num_rows, num_sequences, tile.piece, 1)
    # Only a sequence of several pieces leaves any behind, and that takes more rows than a piece.
    kept = slots if num_rows > tile.piece else 0
    peak = k.new_empty(kept, num_heads, head_dim, dtype=torch.float32)
    mass = torch.empty_like(peak)
    sums = k.new_empty(kept, num_heads, head_dim, head_dim, dtype=torch.float32)
    weight, bias = map_operands(k_map, k)
    with device_of(k):
        launch(
            lln_state_kernel,
            slots * num_heads * triton.cdiv(head_dim, tile.channels),
            k, v, weight, bias, beta, cu_seqlens, *state, peak, mass, sums,
            num_sequences, num_heads, *k.stride()[:2], *v.stride()[:2], *beta.stride(),
            **state_constants(head_dim, k.dtype, **flags),
        )  # fmt: skip
        if kept:
            merge = merge_tile(head_dim)
            launch(
                merge_pieces_kernel,
                num_sequences * num_heads * triton.cdiv(head_dim, merge.channels),
                peak, mass, sums, cu_seqlens, *state, num_heads,
                **merge_constants(head_dim, tile.piece),
            )  # fmt: skip
    return state


def _output(
    q: Tensor,
    k: Tensor | None = None,
    v: Tensor | None = None,
    *,
    state: LLNState | None = None,
    alpha: Tensor | None = None,
    mix: Tensor | None = None,
    cu_seqlens: Tensor,
    block_size: int | None = None,
    num_sinks: tuple[int, int] = (0, 0),
    q_map: Map | None = None,
) -> Tensor:
    """The branches for which there are arguments; absent operands are never read."""
    num_rows, num_heads, head_dim = q.shape
    num_sequences = cu_seqlens.numel() - 1
    constants = output_constants(
        head_dim,
        q.dtype,
        block_size=block_size,
        lln=state is not None,
        sinks=any(num_sinks),
        **map_flags(q_map),
    )
    span = query_span(block_size or constants["BM"], constants["BM"])
    q = unit_stride(q)
    k = q if k is None else unit_stride(k)
    v = q if v is None else unit_stride(v)
    log_mass, value = (q, q) if state is None else (part.contiguous() for part in state)
    weight, bias = map_operands(q_map, q)
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    with device_of(q):
        launch(
            lln_diag_kernel,
            num_slots(num_rows, num_sequences, span.tokens, span.tiles) * num_heads,
            q, k, v, out, log_mass, value, weight, bias,
            q if alpha is None else alpha, q if mix is None else mix, cu_seqlens,
            num_sequences, num_heads, block_size or span.tokens,
            span.tokens, span.tiles, span.rows, *num_sinks, 1.0 / math.sqrt(head_dim),
            *q.stride()[:2], *k.stride()[:2], *v.stride()[:2], *row_strides(alpha),
            *row_strides(mix), **constants,
        )  # fmt: skip
    return out


def state_constants(
    head_dim: int, dtype: torch.dtype, *, weight: bool, bias: bool
) -> dict[str, Any]:
    """Everything the state kernel is compiled for."""
    tile = state_tile(head_dim, dtype, weight=weight)
    return {
        "PIECE": tile.piece,
        "D": head_dim,
        "BD": padded_head_dim(head_dim),
        "BC": tile.channels,
        "BT": tile.tokens,
        "WEIGHT": weight,
        "BIAS": bias,
        **precision(dtype),
        "num_warps": tile.num_warps,
        "num_stages": tile.num_stages,
    }


def merge_constants(head_dim: int, piece: int) -> dict[str, Any]:
    """Everything the merging kernel is compiled for."""
    tile = merge_tile(head_dim)
    return {
        "PIECE": piece,
        "D": head_dim,
        "BD": padded_head_dim(head_dim),
        "BC": tile.channels,
        "NUM_STAGES": tile.num_stages,
        "num_warps": tile.num_warps,
    }


def output_constants(
    head_dim: int,
    dtype: torch.dtype,
    *,
    block_size: int | None,
    lln: bool,
    sinks: bool,
    weight: bool,
    bias: bool,
) -> dict[str, Any]:
    """Everything the output kernel is compiled for. Without a block size there is no Diag."""
    tile = output_tile(head_dim, dtype, weight=weight)
    one_step = block_size is not None and query_span(block_size, tile.queries).is_one_tile
    return {
        "D": head_dim,
        "BD": padded_head_dim(head_dim),
        "BM": tile.queries,
        # One step must show a tile all the blocks it spans.
        "BN": tile.queries if one_step else tile.keys,
        "BC": tile.channels,
        "BS": tile.sinks,
        "LLN": lln,
        "DIAG": block_size is not None,
        "WEIGHT": weight,
        "BIAS": bias,
        "ONE_STEP": one_step,
        "SINKS": sinks,
        **precision(dtype),
        "num_warps": tile.num_warps,
        "num_stages": tile.num_stages,
    }
