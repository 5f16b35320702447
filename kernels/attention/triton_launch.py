"""Launches the Triton kernels: tile sizes, grids, buffers. Nothing here waits for the device."""

from __future__ import annotations

import contextlib
import math
from dataclasses import dataclass
from typing import Any

import torch
import triton  # type: ignore[import-untyped]
from torch import Tensor

from kernels.attention.state import LLNState
from kernels.attention.triton_output import lln_diag_kernel
from kernels.attention.triton_slots import num_slots
from kernels.attention.triton_state import lln_state_kernel, merge_pieces_kernel

SUPPORTED_DTYPES = (torch.float32, torch.bfloat16, torch.float16)

Map = tuple[Tensor | None, Tensor]  # weight (None is the identity) and bias


@dataclass(frozen=True)
class StateTile:
    """How one program of the state pass works."""

    tokens: int  # per step
    channels: int
    piece: int  # tokens of a sequence that one program sums
    num_warps: int
    num_stages: int


@dataclass(frozen=True)
class MergeTile:
    """How one program that merges pieces works."""

    channels: int
    num_warps: int = 4
    num_stages: int = 3


@dataclass(frozen=True)
class OutputTile:
    """How one program of the output pass works."""

    queries: int
    keys: int  # per step
    channels: int  # per step
    sinks: int  # per step
    num_warps: int
    num_stages: int


@dataclass(frozen=True)
class Span:
    """How the tokens of a sequence become query tiles that share their keys."""

    tokens: int  # whole blocks: as many as fill one tile, or a single one of several tiles
    tiles: int
    rows: int  # of one tile

    @property
    def is_one_tile(self) -> bool:
        return self.tiles == 1


def state_tile(head_dim: int, dtype: torch.dtype, *, weight: bool) -> StateTile:
    """The same for every length, so that a sequence is always summed in the same order."""
    width = padded_head_dim(head_dim)
    single = dtype == torch.float32
    channels = min(width, 64 if single or weight else 128)
    if width == 256:
        channels = 32 if single or weight else 64
    return StateTile(
        tokens=32 if single or width == 256 else 64,
        channels=channels,
        # A piece costs a state written and read back: an eighth of the keys and values it sums.
        piece=max(1024, 16 * width),
        num_warps=4 if width <= 64 else 8,
        num_stages=2,
    )


def merge_tile(head_dim: int) -> MergeTile:
    return MergeTile(channels=max(1, 1024 // padded_head_dim(head_dim)))


def output_tile(head_dim: int, dtype: torch.dtype, *, weight: bool) -> OutputTile:
    """The same for every length, so that a query always meets its keys in the same order."""
    width = padded_head_dim(head_dim)
    if dtype == torch.float32:
        rows = 16 if width == 256 else 32
        return OutputTile(
            queries=rows,
            keys=rows,
            channels=min(width, 32 if width == 256 else 64),
            sinks=16,
            num_warps=4 if width <= 32 else 8,
            num_stages=2,
        )
    return OutputTile(
        queries=64,
        keys=32 if width == 256 else 64,
        channels=min(width, 32 if width == 256 else 64 if weight else 128),
        sinks=16,
        num_warps=4 if width <= 64 else 8,
        num_stages=2,
    )


def query_span(block_size: int, rows: int) -> Span:
    if block_size <= rows:
        tokens = rows // block_size * block_size
        return Span(tokens, tiles=1, rows=tokens)
    tiles = -(-block_size // rows)
    return Span(block_size, tiles, rows=-(-block_size // tiles))


def padded_head_dim(head_dim: int) -> int:
    """Blocks are powers of two; the rest is masked."""
    return max(16, 1 << (head_dim - 1).bit_length())


def lln_diag_forward(
    q: Tensor,  # [T, H, D]
    k: Tensor,
    v: Tensor,
    *,
    alpha: Tensor,  # float32 [B, H]
    beta: Tensor,  # float32 [B, H]
    mix: Tensor,  # float32 [H] or [T, H]
    cu_seqlens: Tensor,  # int32 [B + 1]
    block_size: int,
    num_sinks: tuple[int, int],
    q_map: Map | None,
    k_map: Map | None,
) -> Tensor:
    """mix * LLN + (1 - mix) * Diag, in two passes: the state, then all the rest."""
    # Nobody else reads this state, so it is kept in the dtype that the output pass multiplies in.
    state = _state(k, v, beta, cu_seqlens, k_map, value_dtype=q.dtype)
    return _output(
        q, k, v, state=state, alpha=alpha, mix=mix, cu_seqlens=cu_seqlens,
        block_size=block_size, num_sinks=num_sinks, q_map=q_map,
    )  # fmt: skip


def lln_state_forward(
    k: Tensor, v: Tensor, *, beta: Tensor, cu_seqlens: Tensor, k_map: Map | None
) -> LLNState:
    return _state(k, v, beta, cu_seqlens, k_map, value_dtype=torch.float32)


def lln_read_forward(
    q: Tensor, state: LLNState, *, alpha: Tensor, cu_seqlens: Tensor, q_map: Map | None
) -> Tensor:
    return _output(q, state=state, alpha=alpha, cu_seqlens=cu_seqlens, q_map=q_map)


def block_diagonal_forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    cu_seqlens: Tensor,
    block_size: int,
    num_sinks: tuple[int, int],
) -> Tensor:
    return _output(q, k, v, cu_seqlens=cu_seqlens, block_size=block_size, num_sinks=num_sinks)


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
    flags = _map_flags(k_map)
    tile = state_tile(head_dim, k.dtype, weight=flags["weight"])
    k, v = _unit_stride(k), _unit_stride(v)
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
    weight, bias = _map_operands(k_map, k)
    with _device_of(k):
        _launch(
            lln_state_kernel,
            slots * num_heads * triton.cdiv(head_dim, tile.channels),
            k, v, weight, bias, beta, cu_seqlens, *state, peak, mass, sums,
            num_sequences, num_heads, *k.stride()[:2], *v.stride()[:2], *beta.stride(),
            **state_constants(head_dim, k.dtype, **flags),
        )  # fmt: skip
        if kept:
            merge = merge_tile(head_dim)
            _launch(
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
        **_map_flags(q_map),
    )
    span = query_span(block_size or constants["BM"], constants["BM"])
    q = _unit_stride(q)
    k = q if k is None else _unit_stride(k)
    v = q if v is None else _unit_stride(v)
    log_mass, value = (q, q) if state is None else (part.contiguous() for part in state)
    weight, bias = _map_operands(q_map, q)
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    with _device_of(q):
        _launch(
            lln_diag_kernel,
            num_slots(num_rows, num_sequences, span.tokens, span.tiles) * num_heads,
            q, k, v, out, log_mass, value, weight, bias,
            q if alpha is None else alpha, q if mix is None else mix, cu_seqlens,
            num_sequences, num_heads, block_size or span.tokens,
            span.tokens, span.tiles, span.rows, *num_sinks, 1.0 / math.sqrt(head_dim),
            *q.stride()[:2], *k.stride()[:2], *v.stride()[:2], *_row_strides(alpha),
            *_row_strides(mix), **constants,
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
        **_precision(dtype),
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
        **_precision(dtype),
        "num_warps": tile.num_warps,
        "num_stages": tile.num_stages,
    }


def _precision(dtype: torch.dtype) -> dict[str, Any]:
    return {
        # Three tf32 products are as exact as one float32 product and run on tensor cores; "ieee"
        # leaves them, keeps whole operands in registers and spills. 16-bit rows ignore this.
        "PRECISION": "tf32x3",
        # A 16-bit number is exact in tf32, whose rounding of the weight is below the rows' own.
        "MAP_PRECISION": "tf32x3" if dtype == torch.float32 else "tf32",
        # Triton's interpreter cannot multiply bfloat16.
        "UPCAST": triton.knobs.runtime.interpret and dtype == torch.bfloat16,
    }


def _launch(
    kernel: Any,
    num_programs: int,
    *operands: object,
    **constants: object,
) -> None:
    if num_programs:
        kernel[(num_programs,)](*operands, **constants)


def _device_of(x: Tensor) -> contextlib.AbstractContextManager[object]:
    """Triton launches on the current device, which need not be the tensors' own."""
    return torch.cuda.device(x.device) if x.is_cuda else contextlib.nullcontext()


def _unit_stride(x: Tensor) -> Tensor:
    """Rows and heads may lie anywhere (as slices of one fused projection do), channels may not."""
    return x if x.stride(-1) == 1 else x.contiguous()


def _map_flags(affine: Map | None) -> dict[str, bool]:
    return {
        "weight": affine is not None and affine[0] is not None,
        "bias": affine is not None,
    }


def _map_operands(affine: Map | None, absent: Tensor) -> tuple[Tensor, Tensor]:
    if affine is None:
        return absent, absent
    weight, bias = affine
    return absent if weight is None else weight.contiguous(), bias.contiguous()


def _row_strides(x: Tensor | None) -> tuple[int, int]:
    """Strides of an [n, H] operand; one without rows is the same for all."""
    if x is None:
        return 0, 0
    return (x.stride(0), x.stride(1)) if x.dim() == 2 else (0, x.stride(0))
