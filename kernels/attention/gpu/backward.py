"""Launches the backward kernels. Nothing here waits for the device.

Two passes over the rows, as in the forward: queries and gradients give the gradient of the state,
then one program a tile of tokens finishes the gradients of its rows. Sums over tiles and pieces
have a fixed order. d_x is the gradient of x.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import triton  # type: ignore[import-untyped]
from torch import Tensor

from kernels.attention.arguments import Map
from kernels.attention.gpu import tiles
from kernels.attention.gpu.backward_lln import key_map_gradient_kernel
from kernels.attention.gpu.backward_rows import rows_gradient_kernel
from kernels.attention.gpu.backward_state import state_gradient_kernel
from kernels.attention.gpu.backward_sums import diag_rows_kernel
from kernels.attention.gpu.backward_tiles import add_tiles_kernel, add_to_sinks_kernel
from kernels.attention.gpu.constants import (
    ADDED_NUMBERS,
    Constants,
    add_to_sinks_constants,
    diag_rows_constants,
    key_map_constants,
    rows_gradient_constants,
    state_gradient_constants,
    wide_dtype,
)
from kernels.attention.gpu.launch import (
    Arguments,
    Branches,
    launch,
    map_arguments,
    map_flags,
    mix_arguments,
    programs_by_head,
    row_arguments,
    scale_arguments,
    sink_arguments,
    span_arguments,
    state_arguments,
    unit_stride,
)
from kernels.attention.gpu.locate import num_slots
from kernels.attention.gpu.pieces import add_pieces
from kernels.attention.gpu.tiles import WHOLE, Span, query_span
from kernels.attention.state import LLNState


class Gradients(NamedTuple):
    """In the order of the forward's tensors; None where there was none."""

    q: Tensor
    k: Tensor
    v: Tensor
    alpha: Tensor | None = None  # float32 [B, H]
    beta: Tensor | None = None  # float32 [B, H]
    mix: Tensor | None = None  # float32 [T, H]
    q_weight: Tensor | None = None
    q_bias: Tensor | None = None
    k_weight: Tensor | None = None
    k_bias: Tensor | None = None


class StateGradient(NamedTuple):
    """What the tokens must know of the state's gradient."""

    value: Tensor  # [B, H, D, D] of kappa V, in a dtype of float32's range
    channels: Tensor  # float32 [B, H, 3, D]: e; then the sums of dz and of x dz
    q_weight: Tensor | None  # float32 [H, D, D]


class _Rows(NamedTuple):
    """What is given and found by row, [T, H, D] each."""

    q: Tensor
    k: Tensor
    v: Tensor
    grad: Tensor
    d_q: Tensor
    d_k: Tensor
    d_v: Tensor

    @property
    def arguments(self) -> Arguments:
        return row_arguments(q=self.q, k=self.k, v=self.v, g=self.grad)


def attention_backward(
    grad: Tensor,  # [T, H, D]
    q: Tensor,  # [T, H, D]
    k: Tensor,
    v: Tensor,
    *,
    cu_seqlens: Tensor,  # int32 [B + 1]
    state: LLNState | None = None,  # as the forward left it; None without LLN
    alpha: Tensor | None = None,  # float32 [B, H]
    beta: Tensor | None = None,  # float32 [B, H]
    mix: Tensor | None = None,  # float32 [H] or [T, H]; None unless there are both branches
    block_size: int | None = None,  # None without Diag; without LLN too: whole sequences
    num_sinks: tuple[int, int] = (0, 0),
    q_map: Map | None = None,
    k_map: Map | None = None,
) -> Gradients:
    d_q, d_k, d_v = (torch.empty(q.shape, dtype=q.dtype, device=q.device) for _ in range(3))
    q, k, v, grad = (unit_stride(x) for x in (q, k, v, grad))
    rows = _Rows(q, k, v, grad, d_q, d_k, d_v)
    branches = Branches(
        *(cu_seqlens, alpha, beta, mix),
        block_size=block_size,
        num_sinks=num_sinks,
        q_map=q_map,
        k_map=k_map,
    )
    if state is None:
        _launch_rows(rows, branches._replace(block_size=block_size or WHOLE), None, None)
        return Gradients(d_q, d_k, d_v)
    # The kernels take a state as contiguous.
    own = LLNState(*(part.contiguous() for part in state))
    return _differentiate_lln(rows, branches, own)


def _differentiate_lln(rows: _Rows, branches: Branches, state: LLNState) -> Gradients:
    """With LLN, and with Diag where there is a block size."""
    alpha, beta, q_map, k_map = branches.alpha, branches.beta, branches.q_map, branches.k_map
    assert alpha is not None, "a state is read with alpha"
    assert beta is not None, "a state is written with beta"
    d_state = _launch_state(rows, branches, state)
    d_beta, d_mix = _launch_rows(rows, branches, state, d_state)
    assert d_beta is not None, "there is LLN"
    _, dz, stretch = d_state.channels.unbind(2)  # [B, H, D] each
    d_alpha = stretch.sum(-1)
    if q_map is not None:
        d_alpha = d_alpha + (q_map[1] * dz).sum(-1)
    if k_map is not None:
        d_beta = d_beta + (k_map[1] * dz).sum(-1)
    has_k_weight = k_map is not None and k_map[0] is not None
    return Gradients(
        *(rows.d_q, rows.d_k, rows.d_v),
        alpha=d_alpha,
        beta=d_beta,
        mix=d_mix,
        q_weight=d_state.q_weight,
        q_bias=None if q_map is None else (alpha.unsqueeze(-1) * dz).sum(0),
        k_weight=_launch_key_weight(rows, branches, state, d_state) if has_k_weight else None,
        k_bias=None if k_map is None else (beta.unsqueeze(-1) * dz).sum(0),
    )


def _state_constants(q: Tensor, branches: Branches) -> Constants:
    return state_gradient_constants(
        q.shape[2],
        q.dtype,
        mix=branches.mix is not None,
        family=tiles.family_of(q.device),
        **map_flags(branches.q_map),
    )


def _launch_state(rows: _Rows, branches: Branches, state: LLNState) -> StateGradient:
    """The first pass."""
    q = rows.q
    num_rows, num_heads, head_dim = q.shape
    num_sequences = branches.num_sequences
    constants = _state_constants(q, branches)
    piece = constants["PIECE"]
    slots = num_slots(num_rows, num_sequences, piece, 1, piece)
    # Only a sequence of several pieces leaves any behind, and that takes more rows than a piece.
    num_parts = slots if num_rows > piece else 0
    shape = num_heads, head_dim, head_dim
    value = q.new_empty(num_sequences, *shape, dtype=wide_dtype(q.dtype))
    channels = q.new_empty(num_sequences, num_heads, 3, head_dim, dtype=torch.float32)
    part_value = q.new_empty(num_parts, *shape, dtype=torch.float32)
    part_channels = q.new_empty(num_parts, num_heads, 3, head_dim, dtype=torch.float32)
    # Slots without a piece are added up with the others.
    part_weight = q.new_zeros(slots, *shape, dtype=torch.float32) if constants["WEIGHT"] else None
    launch(
        state_gradient_kernel,
        slots * num_heads * triton.cdiv(head_dim, constants["BC"]),
        **row_arguments(q=q, g=rows.grad),
        **map_arguments(branches.q_map),
        **scale_arguments(alpha=branches.alpha),
        **mix_arguments(branches.mix),
        p_cu_seqlens=branches.cu_seqlens,
        **state_arguments(state),
        p_value_gradient=value,
        p_channels=channels,
        p_part_value_gradient=part_value,
        p_part_channels=part_channels,
        p_part_weight=part_weight,
        num_sequences=num_sequences,
        num_heads=num_heads,
        **constants,
    )
    if num_parts:
        add_pieces(part_value, branches.cu_seqlens, value, piece, num_rows)
        add_pieces(part_channels, branches.cu_seqlens, channels, piece, num_rows)
    return StateGradient(value, channels, None if part_weight is None else part_weight.sum(0))


def _launch_rows(
    rows: _Rows, branches: Branches, state: LLNState | None, d_state: StateGradient | None
) -> tuple[Tensor | None, Tensor | None]:
    """The second pass: writes the gradients of the rows, and returns beta's and the mix's.

    Without LLN there is no gradient of beta, and without both branches none of the mix.
    """
    q = rows.q
    num_rows, num_heads, head_dim = q.shape
    num_sequences = branches.num_sequences
    constants = rows_gradient_constants(
        head_dim,
        q.dtype,
        block_size=branches.block_size,
        lln=state is not None,
        sinks=any(branches.num_sinks),
        q_map=map_flags(branches.q_map),
        k_map=map_flags(branches.k_map),
        family=tiles.family_of(q.device),
    )
    span = query_span(branches.block_size or constants["BM"], constants["BM"])
    slots = num_slots(num_rows, num_sequences, *span.cut)
    common = {
        **rows.arguments,
        "p_cu_seqlens": branches.cu_seqlens,
        "num_heads": num_heads,
        "num_rows": num_rows,
        "num_sequences": num_sequences,
        **sink_arguments(branches.num_sinks),
        **mix_arguments(branches.mix),
        "scale": 1.0 / math.sqrt(head_dim),
    }
    sums = _launch_diag_rows(q, slots, common, constants)
    d_mix = tile_beta = sink_k = sink_v = None
    if constants["LLN"] and constants["DIAG"]:
        d_mix = q.new_empty(num_rows, num_heads, dtype=torch.float32)
    if constants["LLN"]:
        tile_beta = q.new_empty(slots, num_heads, dtype=torch.float32)
    if constants["SINKS"]:
        shape = slots, num_heads, sum(branches.num_sinks), head_dim
        sink_k, sink_v = q.new_empty(2, *shape, dtype=torch.float32)
    launch(
        rows_gradient_kernel,
        programs_by_head(slots, num_heads),
        **common,
        p_dq=rows.d_q,
        p_dk=rows.d_k,
        p_dv=rows.d_v,
        stride_ot=rows.d_q.stride(0),
        p_dmix=d_mix,
        p_tile_beta=tile_beta,
        p_sink_k=sink_k,
        p_sink_v=sink_v,
        **state_arguments(state),
        p_value_gradient=None if d_state is None else d_state.value,
        p_channels=None if d_state is None else d_state.channels,
        p_sums=sums,
        **map_arguments(branches.q_map, "q_"),
        **map_arguments(branches.k_map, "k_"),
        **scale_arguments(alpha=branches.alpha, beta=branches.beta),
        **constants,
    )
    for parts, gradient in ((sink_k, rows.d_k), (sink_v, rows.d_v)):
        if parts is not None:
            _add_to_sinks(parts, gradient, branches, span)
    d_beta = None if tile_beta is None else _add_tiles(tile_beta, branches, span)
    return d_beta, d_mix


def _add_to_sinks(parts: Tensor, gradient: Tensor, branches: Branches, span: Span) -> None:
    """Adds what every tile found for its sequence's sinks to their rows."""
    _, num_heads, num_sinks, head_dim = parts.shape
    launch(
        add_to_sinks_kernel,
        branches.num_sequences * num_heads * num_sinks,
        p_sink=parts,
        p_rows=gradient,
        stride_ot=gradient.stride(0),
        p_cu_seqlens=branches.cu_seqlens,
        num_heads=num_heads,
        **span_arguments(span),
        **sink_arguments(branches.num_sinks),
        **add_to_sinks_constants(head_dim),
    )


def _add_tiles(tiles_of_heads: Tensor, branches: Branches, span: Span) -> Tensor:
    """A number a tile [slots, H], added up by sequence: [B, H]."""
    num_heads = tiles_of_heads.shape[1]
    sums = tiles_of_heads.new_empty(branches.num_sequences, num_heads)
    launch(
        add_tiles_kernel,
        branches.num_sequences * num_heads,
        p_tiles=tiles_of_heads,
        p_sums=sums,
        p_cu_seqlens=branches.cu_seqlens,
        num_heads=num_heads,
        **span_arguments(span),
        BT=ADDED_NUMBERS,
    )
    return sums


def _launch_diag_rows(
    q: Tensor, slots: int, common: Arguments, constants: Constants
) -> Tensor | None:
    """log2 of every row's mass, its scaled g . diag, and Diag's share: [3, H, T].

    Only keys of blocks that take several steps need them beforehand.
    """
    if not constants["DIAG"] or constants["ONE_STEP"]:
        return None
    num_rows, num_heads, _ = q.shape
    sums = q.new_empty(3, num_heads, num_rows, dtype=torch.float32)
    launch(
        diag_rows_kernel,
        programs_by_head(slots, num_heads),
        **common,
        p_sums=sums,
        **diag_rows_constants(constants),
    )
    return sums


def _launch_key_weight(
    rows: _Rows, branches: Branches, state: LLNState, d_state: StateGradient
) -> Tensor:
    """The gradient of the key map's weight, which takes a third look at keys and values."""
    k = rows.k
    num_rows, num_heads, head_dim = k.shape
    constants = key_map_constants(head_dim, k.dtype, tiles.family_of(k.device))
    piece = constants["PIECE"]
    slots = num_slots(num_rows, branches.num_sequences, piece, 1, piece)
    parts = k.new_zeros(slots, num_heads, head_dim, head_dim, dtype=torch.float32)
    launch(
        key_map_gradient_kernel,
        slots * num_heads * triton.cdiv(head_dim, constants["BC"]),
        **row_arguments(k=k, v=rows.v),
        **map_arguments(branches.k_map),
        **scale_arguments(beta=branches.beta),
        p_cu_seqlens=branches.cu_seqlens,
        p_log_mass=state.log_mass,
        p_value_gradient=d_state.value,
        p_channels=d_state.channels,
        p_part_weight=parts,
        num_sequences=branches.num_sequences,
        num_heads=num_heads,
        **constants,
    )
    return parts.sum(0)
