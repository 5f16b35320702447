"""Launches what finishes the gradients of rows, and adds up what their tiles leave behind."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from kernels.attention.gpu import tiles
from kernels.attention.gpu.backward_rows import rows_gradient_kernel
from kernels.attention.gpu.backward_sums import diag_rows_kernel
from kernels.attention.gpu.backward_tiles import add_tiles_kernel, add_to_sinks_kernel
from kernels.attention.gpu.constants import (
    ADDED_NUMBERS,
    Constants,
    add_to_sinks_constants,
    diag_rows_constants,
    rows_gradient_constants,
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
)
from kernels.attention.gpu.locate import num_slots
from kernels.attention.gpu.state_gradient import StateGradient
from kernels.attention.gpu.tiles import Span, query_span
from kernels.attention.state import LLNState


class Rows(NamedTuple):
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


def launch_rows_gradient(
    rows: Rows, branches: Branches, state: LLNState | None, d_state: StateGradient | None
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
    d_mix, tile_beta, sink_k, sink_v = _buffers(q, slots, sum(branches.num_sinks), constants)
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


class _Buffers(NamedTuple):
    """What the tiles leave behind; None where there is nothing of the kind."""

    mix: Tensor | None  # float32 [T, H]
    tile_beta: Tensor | None  # float32 [slots, H]
    sink_k: Tensor | None  # float32 [slots, H, sinks, D]
    sink_v: Tensor | None


def _buffers(q: Tensor, slots: int, num_sinks: int, constants: Constants) -> _Buffers:
    num_rows, num_heads, head_dim = q.shape
    mix = tile_beta = sink_k = sink_v = None
    if constants["LLN"] and constants["DIAG"]:
        mix = q.new_empty(num_rows, num_heads, dtype=torch.float32)
    if constants["LLN"]:
        tile_beta = q.new_empty(slots, num_heads, dtype=torch.float32)
    if constants["SINKS"]:
        shape = slots, num_heads, num_sinks, head_dim
        sink_k, sink_v = q.new_empty(2, *shape, dtype=torch.float32)
    return _Buffers(mix, tile_beta, sink_k, sink_v)


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
