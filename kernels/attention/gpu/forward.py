"""Launches the forward kernels: tile sizes, grids, buffers. Nothing here waits for the device.

Softmax over whole sequences is one launch. LLN+Diag is one launch for the short sequences, and two
passes for the others: the state pass sums keys and values, the output pass answers the queries.
"""

from __future__ import annotations

import math

import torch
import triton  # type: ignore[import-untyped]
from torch import Tensor

from kernels.attention.arguments import Map
from kernels.attention.gpu import tiles
from kernels.attention.gpu.constants import (
    merge_constants,
    output_constants,
    short_constants,
    softmax_constants,
    state_constants,
)
from kernels.attention.gpu.forward_output import lln_diag_kernel
from kernels.attention.gpu.forward_short import short_sequences_kernel
from kernels.attention.gpu.forward_state import lln_state_kernel, merge_pieces_kernel
from kernels.attention.gpu.launch import (
    Branches,
    head_groups,
    is_captured,
    launch,
    map_arguments,
    map_flags,
    mix_arguments,
    row_arguments,
    scale_arguments,
    sink_arguments,
    span_arguments,
    state_arguments,
    unit_stride,
)
from kernels.attention.gpu.locate import num_slots
from kernels.attention.gpu.softmax import softmax_kernel
from kernels.attention.gpu.tiles import family_of, piece_tokens, query_span
from kernels.attention.state import LLNState, empty_state

LOG2_E = 1 / math.log(2)
NOT_SHORT = -1
"""As the length up to which sequences are short: none is."""


def attention_forward(
    q: Tensor,  # [T, H, D]
    k: Tensor,
    v: Tensor,
    *,
    cu_seqlens: Tensor,  # int32 [B + 1]
    alpha: Tensor | None = None,  # float32 [B, H]; None without LLN
    beta: Tensor | None = None,  # float32 [B, H]; None without LLN
    mix: Tensor | None = None,  # float32 [H] or [T, H]; None unless there are both branches
    block_size: int | None = None,  # None without Diag; without LLN too: whole sequences
    num_sinks: tuple[int, int] = (0, 0),
    q_map: Map | None = None,
    k_map: Map | None = None,
    shortest: int | None = None,  # no sequence has fewer tokens, where that is known
    longest: int | None = None,  # no sequence has more, where that is known
    keep_state: bool = False,
) -> tuple[Tensor, LLNState | None]:
    """mix * LLN + (1 - mix) * Diag, or one of them, or softmax over whole sequences.

    With `keep_state` also the state, which the backward reads, in the dtype that the output pass
    multiplies in.
    """
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    branches = Branches(cu_seqlens, alpha, beta, mix, block_size, num_sinks, q_map, k_map)
    if beta is None and block_size is None:
        _launch_softmax(q, k, v, out, cu_seqlens)
        return out, None
    if beta is None:
        _launch_output(q, k, v, out, None, branches)
        return out, None
    groups = head_groups(k, q.shape[0] // piece_tokens(k.shape[2]))
    if len(groups) == 1:
        state = _attend(q, k, v, out, branches=branches, shortest=shortest, longest=longest)
        return out, state if keep_state else None
    states = [
        _attend(
            *(x[:, heads] for x in (q, k, v, out)),
            branches=branches.of_heads(heads),
            shortest=shortest,
            longest=longest,
        )
        for heads in groups
    ]
    if not keep_state:
        return out, None
    log_mass, value = zip(*states, strict=True)
    return out, LLNState(torch.cat(log_mass, dim=1), torch.cat(value, dim=1))


def lln_state_forward(
    k: Tensor, v: Tensor, *, beta: Tensor, cu_seqlens: Tensor, k_map: Map | None
) -> LLNState:
    state = empty_state(k, cu_seqlens.numel() - 1, torch.float32)
    _launch_state(k, v, state, Branches(cu_seqlens, beta=beta, k_map=k_map))
    return state


def lln_read_forward(
    q: Tensor, state: LLNState, *, alpha: Tensor, cu_seqlens: Tensor, q_map: Map | None
) -> Tensor:
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    _launch_output(q, None, None, out, state, Branches(cu_seqlens, alpha=alpha, q_map=q_map))
    return out


def _attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    *,
    branches: Branches,
    shortest: int | None,
    longest: int | None,
) -> LLNState:
    """Some heads: the short sequences, if any, in one launch, and the others in two passes."""
    num_rows, _, head_dim = q.shape
    state = empty_state(k, branches.num_sequences, q.dtype)
    short = tiles.short_tokens(head_dim)
    if is_captured(q):
        # A graph is replayed with other bounds than those it is captured with: it holds both.
        shortest = longest = None
    elif branches.num_sequences == 1:
        shortest = longest = num_rows
    if (shortest or 0) <= short:
        _launch_short(q, k, v, out, state, branches)
    if (num_rows if longest is None else longest) > short:
        _launch_state(k, v, state, branches, short=short)
        _launch_output(q, k, v, out, state, branches, short=short)
    return state


def _launch_short(
    q: Tensor, k: Tensor, v: Tensor, out: Tensor, state: LLNState, branches: Branches
) -> None:
    q, k, v = unit_stride(q), unit_stride(k), unit_stride(v)
    _, num_heads, head_dim = q.shape
    constants = short_constants(
        head_dim,
        q.dtype,
        block_size=branches.block_size,
        sinks=any(branches.num_sinks),
        q_map=map_flags(branches.q_map),
        k_map=map_flags(branches.k_map),
    )
    span = query_span(branches.block_size or constants["BM"], constants["BM"])
    launch(
        short_sequences_kernel,
        branches.num_sequences * num_heads,
        **row_arguments(q=q, k=k, v=v),
        p_out=out,
        stride_ot=out.stride(0),
        **state_arguments(state),
        **map_arguments(branches.q_map, "q_"),
        **map_arguments(branches.k_map, "k_"),
        **scale_arguments(alpha=branches.alpha, beta=branches.beta),
        **mix_arguments(branches.mix),
        p_cu_seqlens=branches.cu_seqlens,
        num_heads=num_heads,
        block_size=branches.block_size or span.tokens,
        span=span.tokens,
        rows_per_tile=span.rows,
        **sink_arguments(branches.num_sinks),
        short=tiles.short_tokens(head_dim),
        scale=LOG2_E / math.sqrt(head_dim),
        **constants,
    )


def _launch_state(
    k: Tensor, v: Tensor, state: LLNState, branches: Branches, *, short: int = NOT_SHORT
) -> None:
    """Writes the states of sequences of more than `short` tokens."""
    k, v = unit_stride(k), unit_stride(v)
    num_rows, num_heads, head_dim = k.shape
    constants = state_constants(
        head_dim, k.dtype, family=family_of(k.device), **map_flags(branches.k_map)
    )
    piece = constants["PIECE"]
    slots = num_slots(num_rows, branches.num_sequences, piece, 1, piece)
    # Only a sequence of several pieces leaves any behind, and that takes more rows than a piece.
    num_parts = slots if num_rows > piece else 0
    peak = k.new_empty(num_parts, num_heads, head_dim, dtype=torch.float32)
    parts = {
        "p_part_peak": peak,
        "p_part_mass": torch.empty_like(peak),
        "p_part_sum": k.new_empty(num_parts, num_heads, head_dim, head_dim, dtype=torch.float32),
    }
    launch(
        lln_state_kernel,
        slots * num_heads * triton.cdiv(head_dim, constants["BC"]),
        **row_arguments(k=k, v=v),
        **map_arguments(branches.k_map),
        **scale_arguments(beta=branches.beta),
        p_cu_seqlens=branches.cu_seqlens,
        **state_arguments(state),
        **parts,
        num_sequences=branches.num_sequences,
        num_heads=num_heads,
        short=short,
        **constants,
    )
    if not num_parts:
        return
    constants = merge_constants(head_dim, piece)
    launch(
        merge_pieces_kernel,
        branches.num_sequences * num_heads * triton.cdiv(head_dim, constants["BC"]),
        **parts,
        p_cu_seqlens=branches.cu_seqlens,
        **state_arguments(state),
        num_heads=num_heads,
        **constants,
    )


def _launch_output(
    q: Tensor,
    k: Tensor | None,  # None without Diag
    v: Tensor | None,
    out: Tensor,
    state: LLNState | None,  # None without LLN
    branches: Branches,
    *,
    short: int = NOT_SHORT,
) -> None:
    """Answers the queries of sequences of more than `short` tokens."""
    q, k, v = unit_stride(q), k if k is None else unit_stride(k), v if v is None else unit_stride(v)
    num_rows, num_heads, head_dim = q.shape
    constants = output_constants(
        head_dim,
        q.dtype,
        block_size=branches.block_size,
        lln=state is not None,
        sinks=any(branches.num_sinks),
        family=family_of(q.device),
        **map_flags(branches.q_map),
    )
    span = query_span(branches.block_size or constants["BM"], constants["BM"])
    launch(
        lln_diag_kernel,
        num_slots(num_rows, branches.num_sequences, *span.cut) * num_heads,
        **row_arguments(q=q, k=k, v=v),
        p_out=out,
        stride_ot=out.stride(0),
        **state_arguments(state),
        **map_arguments(branches.q_map),
        **scale_arguments(alpha=branches.alpha),
        **mix_arguments(branches.mix),
        p_cu_seqlens=branches.cu_seqlens,
        num_sequences=branches.num_sequences,
        num_heads=num_heads,
        block_size=branches.block_size or span.tokens,
        **span_arguments(span),
        **sink_arguments(branches.num_sinks),
        short=short,
        scale=LOG2_E / math.sqrt(head_dim),
        **constants,
    )


def _launch_softmax(q: Tensor, k: Tensor, v: Tensor, out: Tensor, cu_seqlens: Tensor) -> None:
    q, k, v = unit_stride(q), unit_stride(k), unit_stride(v)
    num_rows, num_heads, head_dim = q.shape
    num_sequences = cu_seqlens.numel() - 1
    constants = softmax_constants(head_dim, q.dtype, family=family_of(q.device))
    launch(
        softmax_kernel,
        num_slots(num_rows, num_sequences, constants["BM"], 1, constants["BM"]) * num_heads,
        **row_arguments(q=q, k=k, v=v),
        p_out=out,
        stride_ot=out.stride(0),
        p_cu_seqlens=cu_seqlens,
        num_sequences=num_sequences,
        num_heads=num_heads,
        scale=LOG2_E / math.sqrt(head_dim),
        **constants,
    )
