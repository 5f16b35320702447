"""Launches the Triton kernels: tile sizes, grids, buffers. Nothing here waits for the device."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
import triton  # type: ignore[import-untyped]
from torch import Tensor

from kernels.attention import triton_tiles
from kernels.attention.state import LLNState, empty_state
from kernels.attention.triton_groups import head_groups, map_of_heads
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
from kernels.attention.triton_short import short_sequences_kernel
from kernels.attention.triton_slots import num_slots
from kernels.attention.triton_softmax import softmax_kernel
from kernels.attention.triton_state import lln_state_kernel, merge_pieces_kernel
from kernels.attention.triton_tiles import (
    family_of,
    merge_tile,
    output_tile,
    padded_head_dim,
    piece_tokens,
    query_span,
    softmax_tile,
    state_tile,
)

LOG2_E = 1 / math.log(2)


def attention_forward(
    q: Tensor,  # [T, H, D]
    k: Tensor,
    v: Tensor,
    *,
    cu_seqlens: Tensor,  # int32 [B + 1]
    alpha: Tensor | None = None,  # float32 [B, H]; None without LLN
    beta: Tensor | None = None,  # float32 [B, H]; None without LLN
    mix: Tensor | None = None,  # float32 [H] or [T, H]; None where there is one branch
    block_size: int | None = None,  # None without Diag; without LLN too: whole sequences
    num_sinks: tuple[int, int] = (0, 0),
    q_map: Map | None = None,
    k_map: Map | None = None,
    longest: int | None = None,  # no sequence has more tokens, where that is known
    keep_state: bool = False,
) -> tuple[Tensor, LLNState | None]:
    """mix * LLN + (1 - mix) * Diag, or one of them; the state too where a gradient will want it."""
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    if beta is None and block_size is None:
        _softmax(q, k, v, out, cu_seqlens)
        return out, None
    if beta is None:
        _output(
            q, k, v, out, cu_seqlens=cu_seqlens, block_size=block_size, num_sinks=num_sinks
        )  # fmt: skip
        return out, None
    states = []
    for heads in head_groups(k, q.shape[0] // piece_tokens(k.shape[2])):
        group = _Group(
            q[:, heads], k[:, heads], v[:, heads], out[:, heads],
            alpha=None if alpha is None else alpha[:, heads],
            beta=beta[:, heads],
            mix=None if mix is None else mix[..., heads],
            q_map=map_of_heads(q_map, heads),
            k_map=map_of_heads(k_map, heads),
        )  # fmt: skip
        states.append(_attend(group, cu_seqlens, block_size, num_sinks, longest))
    if not keep_state:
        return out, None
    # Nobody else reads this state: it is kept in the dtype that the output pass multiplies in.
    whole = states[0] if len(states) == 1 else _side_by_side(states)
    return out, whole


def lln_state_forward(
    k: Tensor, v: Tensor, *, beta: Tensor, cu_seqlens: Tensor, k_map: Map | None
) -> LLNState:
    state = empty_state(k, cu_seqlens.numel() - 1, torch.float32)
    _state(k, v, state, beta, cu_seqlens, k_map)
    return state


def lln_read_forward(
    q: Tensor, state: LLNState, *, alpha: Tensor, cu_seqlens: Tensor, q_map: Map | None
) -> Tensor:
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    _output(q, q, q, out, state=state, alpha=alpha, cu_seqlens=cu_seqlens, q_map=q_map)
    return out


class _Group(NamedTuple):
    """Some heads, all of which may be."""

    q: Tensor  # [T, H, D]
    k: Tensor
    v: Tensor
    out: Tensor
    alpha: Tensor | None  # [B, H]
    beta: Tensor  # [B, H]
    mix: Tensor | None  # [H] or [T, H]
    q_map: Map | None
    k_map: Map | None


def _side_by_side(states: list[LLNState]) -> LLNState:
    log_mass, value = zip(*states, strict=True)
    return LLNState(torch.cat(log_mass, dim=1), torch.cat(value, dim=1))


def _attend(
    group: _Group,
    cu_seqlens: Tensor,
    block_size: int | None,
    num_sinks: tuple[int, int],
    longest: int | None,
) -> LLNState:
    """The short sequences in one launch, and the others in two passes, if there may be any."""
    q, k, v, out, alpha, beta, mix, q_map, k_map = group
    num_rows, num_sequences = q.shape[0], cu_seqlens.numel() - 1
    state = empty_state(k, num_sequences, q.dtype)
    longest = num_rows if longest is None else longest
    short = triton_tiles.short_tokens(q.shape[2])
    # One sequence is as long as all rows.
    if short >= 0 and (num_sequences > 1 or num_rows <= short):
        _short(group, state, cu_seqlens, block_size, num_sinks)
    if longest > short or short < 0:
        _state(k, v, state, beta, cu_seqlens, k_map, short=short)
        _output(
            q, k, v, out, state=state, alpha=alpha, mix=mix, cu_seqlens=cu_seqlens,
            block_size=block_size, num_sinks=num_sinks, q_map=q_map, short=short,
        )  # fmt: skip
    return state


def _short(
    group: _Group,
    state: LLNState,
    cu_seqlens: Tensor,
    block_size: int | None,
    num_sinks: tuple[int, int],
) -> None:
    q, k, v = (unit_stride(x) for x in group[:3])
    num_heads, head_dim = q.shape[1:]
    constants = short_constants(
        head_dim, q.dtype, block_size=block_size, sinks=any(num_sinks),
        q_map=map_flags(group.q_map), k_map=map_flags(group.k_map),
    )  # fmt: skip
    span = query_span(block_size or constants["BM"], constants["BM"])
    with device_of(q):
        launch(
            short_sequences_kernel, (cu_seqlens.numel() - 1) * num_heads,
            q, k, v, group.out, *state,
            *map_operands(group.q_map, q), *map_operands(group.k_map, q), group.alpha, group.beta,
            q if group.mix is None else group.mix, cu_seqlens, num_heads, block_size or span.tokens,
            span.tokens, span.rows, *num_sinks, triton_tiles.short_tokens(head_dim),
            1.0 / math.sqrt(head_dim), *q.stride()[:2], *k.stride()[:2], *v.stride()[:2],
            group.out.stride(0), *row_strides(group.alpha), *row_strides(group.beta),
            *row_strides(group.mix), **constants,
        )  # fmt: skip


def _state(
    k: Tensor,
    v: Tensor,
    state: LLNState,
    beta: Tensor,
    cu_seqlens: Tensor,
    k_map: Map | None,
    *,
    short: int = -1,
) -> None:
    """Writes the states of sequences of more than `short` tokens."""
    num_rows, num_heads, head_dim = k.shape
    num_sequences = cu_seqlens.numel() - 1
    flags = map_flags(k_map)
    family = family_of(k.device)
    tile = state_tile(head_dim, k.dtype, weight=flags["weight"], family=family)
    k, v = unit_stride(k), unit_stride(v)
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
            num_sequences, num_heads, short, *k.stride()[:2], *v.stride()[:2], *beta.stride(),
            **state_constants(head_dim, k.dtype, family=family, **flags),
        )  # fmt: skip
        if kept:
            merge = merge_tile(head_dim)
            launch(
                merge_pieces_kernel,
                num_sequences * num_heads * triton.cdiv(head_dim, merge.channels),
                peak, mass, sums, cu_seqlens, *state, num_heads,
                **merge_constants(head_dim, tile.piece),
            )  # fmt: skip


def _output(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    *,
    state: LLNState | None = None,
    alpha: Tensor | None = None,
    mix: Tensor | None = None,
    cu_seqlens: Tensor,
    block_size: int | None = None,
    num_sinks: tuple[int, int] = (0, 0),
    q_map: Map | None = None,
    short: int = -1,
) -> None:
    """The branches for which there are arguments, for sequences of more than `short` tokens."""
    num_rows, num_heads, head_dim = q.shape
    num_sequences = cu_seqlens.numel() - 1
    constants = output_constants(
        head_dim,
        q.dtype,
        block_size=block_size,
        lln=state is not None,
        sinks=any(num_sinks),
        family=family_of(q.device),
        **map_flags(q_map),
    )
    span = query_span(block_size or constants["BM"], constants["BM"])
    q, k, v = unit_stride(q), unit_stride(k), unit_stride(v)
    log_mass, value = (q, q) if state is None else (part.contiguous() for part in state)
    weight, bias = map_operands(q_map, q)
    with device_of(q):
        launch(
            lln_diag_kernel,
            num_slots(num_rows, num_sequences, span.tokens, span.tiles) * num_heads,
            q, k, v, out, log_mass, value, weight, bias,
            q if alpha is None else alpha, q if mix is None else mix, cu_seqlens,
            num_sequences, num_heads, block_size or span.tokens,
            span.tokens, span.tiles, span.rows, *num_sinks, short, 1.0 / math.sqrt(head_dim),
            *q.stride()[:2], *k.stride()[:2], *v.stride()[:2], out.stride(0), *row_strides(alpha),
            *row_strides(mix), **constants,
        )  # fmt: skip


def _softmax(q: Tensor, k: Tensor, v: Tensor, out: Tensor, cu_seqlens: Tensor) -> None:
    num_rows, num_heads, head_dim = q.shape
    num_sequences = cu_seqlens.numel() - 1
    constants = softmax_constants(head_dim, q.dtype, family=family_of(q.device))
    q, k, v = unit_stride(q), unit_stride(k), unit_stride(v)
    with device_of(q):
        launch(
            softmax_kernel,
            num_slots(num_rows, num_sequences, constants["BM"], 1) * num_heads,
            q, k, v, out, cu_seqlens, num_sequences, num_heads, LOG2_E / math.sqrt(head_dim),
            *q.stride()[:2], *k.stride()[:2], *v.stride()[:2], out.stride(0), **constants,
        )  # fmt: skip


def state_constants(
    head_dim: int, dtype: torch.dtype, *, weight: bool, bias: bool, family: str | None = None
) -> dict[str, Any]:
    """Everything the state kernel is compiled for."""
    tile = state_tile(head_dim, dtype, weight=weight, family=family)
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
    family: str | None = None,
) -> dict[str, Any]:
    """Everything the output kernel is compiled for. Without a block size there is no Diag."""
    tile = output_tile(head_dim, dtype, weight=weight, block_size=block_size, family=family)
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


def softmax_constants(
    head_dim: int, dtype: torch.dtype, *, family: str | None = None
) -> dict[str, Any]:
    """Everything the kernel of whole sequences is compiled for."""
    tile = softmax_tile(head_dim, dtype, family=family)
    both = precision(dtype)
    return {
        "D": head_dim,
        "BD": padded_head_dim(head_dim),
        "BM": tile.queries,
        "BN": tile.keys,
        "PRECISION": both["PRECISION"],
        "UPCAST": both["UPCAST"],
        "num_warps": tile.num_warps,
        "num_stages": tile.num_stages,
    }


def short_constants(
    head_dim: int,
    dtype: torch.dtype,
    *,
    block_size: int | None,
    sinks: bool,
    q_map: dict[str, bool],
    k_map: dict[str, bool],
) -> dict[str, Any]:
    """Everything the kernel of short sequences is compiled for: both passes' own, in one.

    By default on any device: tiles that were measured apart need not fit together.
    """
    state = state_constants(head_dim, dtype, family=None, **k_map)
    output = output_constants(
        head_dim, dtype, block_size=block_size, lln=True, sinks=sinks, family=None, **q_map
    )
    dropped = ("LLN", "WEIGHT", "BIAS")
    return {name: value for name, value in output.items() if name not in dropped} | {
        # Both passes share one program's registers.
        "BT": min(state["BT"], 32) if k_map["weight"] else state["BT"],
        "STATE_BC": state["BC"],
        "Q_WEIGHT": q_map["weight"],
        "Q_BIAS": q_map["bias"],
        "K_WEIGHT": k_map["weight"],
        "K_BIAS": k_map["bias"],
    }
