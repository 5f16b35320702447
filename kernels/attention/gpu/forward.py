"""Launches the forward kernels: tile sizes, grids, buffers. Nothing here waits for the device.

Softmax over whole sequences is one launch. LLN+Diag is one launch for the short sequences, and two
passes for the others: the state pass sums keys and values, the output pass answers the queries.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from kernels.attention.arguments import Gate, Map
from kernels.attention.gpu import tiles
from kernels.attention.gpu.forward_form import FormLaunches, launches_for
from kernels.attention.gpu.forward_plan import (
    StatePlan,
    TilesPlan,
    forward_plan,
    kept_tiles_plan,
    state_plan,
    tiles_plan,
)
from kernels.attention.gpu.known_calls import KNOWN_CALLS, key_of
from kernels.attention.gpu.launch import (
    ABSENT,
    Branches,
    Grid,
    is_captured,
    on_device_of,
    unit_stride,
)
from kernels.attention.gpu.prepared import kept_stream
from kernels.attention.packed_sequences import Bounds, PackedSequences, check_cu_seqlens
from kernels.attention.state import LLNState, empty_state


def attention_forward(
    q: Tensor,  # [T, H, D]
    k: Tensor,
    v: Tensor,
    *,
    cu_seqlens: Tensor,  # int32 [B + 1]
    alpha: Tensor | None = None,  # float32 [B, H], [H] or []; None without LLN
    beta: Tensor | None = None,  # the same
    mix: Tensor | Gate | None = None,  # float32 [H] or [T, H]; None unless there are both branches
    mix_scale: Tensor | None = None,  # float32 [] or [B], a factor of the mix
    block_size: int | None = None,  # None without Diag; without LLN too: whole sequences
    num_sinks: tuple[int, int] = (0, 0),
    q_map: Map | None = None,
    k_map: Map | None = None,
    shortest: int | None = None,  # no sequence has fewer tokens, where that is known
    longest: int | None = None,  # no sequence has more, where that is known
    packed: PackedSequences | None = None,  # the bounds, where the host knows them
    keep_state: bool = False,
) -> tuple[Tensor, LLNState | None]:
    """mix * LLN + (1 - mix) * Diag, or one of them, or softmax over whole sequences.

    With `keep_state` also the state, which the backward reads, in the dtype that the output pass
    multiplies in.
    """
    q, k, v, out = unit_stride(q), unit_stride(k), unit_stride(v), q.new_empty(q.shape)
    if is_captured(q):
        # A graph is replayed with other bounds than those it is captured with: it holds the
        # launches for any.
        packed = shortest = longest = None
    elif cu_seqlens.numel() == 2:
        shortest = longest = q.shape[0]
    branches = Branches(
        *(cu_seqlens, alpha, beta, *_mix_and_gate(mix), mix_scale),
        *(block_size, num_sinks, _contiguous_map(q_map), _contiguous_map(k_map)),
        packed=packed,
    )
    with on_device_of(q):
        if beta is None:
            _attend_without_lln(q, k, v, out, branches)
            return out, None
        state = _attend(q, k, v, out, branches, shortest, longest)
        return out, state if keep_state else None


def attend_again(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens: Bounds | None,
    *,
    alpha: float | Tensor,
    beta: float | Tensor,
    mix: float | Tensor | Gate,
    mix_scale: float | Tensor | None,
    block_size: int,
    num_sinks: int | tuple[int, int],
    q_map: Map | None,
    k_map: Map | None,
) -> Tensor | None:
    """LLN+Diag of arguments as callers give them, if there was a call like this; else None."""
    if q.dim() != 3 or not q.shape == k.shape == v.shape or is_captured(q):
        return None
    packed = check_cu_seqlens(cu_seqlens, q)
    sinks = (num_sinks, 0) if isinstance(num_sinks, int) else tuple(num_sinks)
    given: Any = (
        *(packed.cu_seqlens, alpha, beta, *_mix_and_gate(mix), mix_scale),
        *(block_size, sinks, q_map, k_map, None, packed),
    )
    branches = Branches(*given)
    try:
        launches = KNOWN_CALLS.find(key_of(q, k, v, branches))
    except AttributeError:
        return None  # a number in place of a tensor has no shape
    if launches is None or packed.bounds is None:
        return None
    out = q.new_empty(q.shape)
    with on_device_of(q):
        _launch(launches, q, k, v, out, branches, None, None)
    return out


def lln_state_forward(
    k: Tensor, v: Tensor, *, beta: Tensor, cu_seqlens: Tensor, k_map: Map | None
) -> LLNState:
    k, v, k_map = unit_stride(k), unit_stride(v), _contiguous_map(k_map)
    branches = Branches(cu_seqlens, beta=beta, k_map=k_map)
    state = empty_state(k, branches.num_sequences, torch.float32)
    launches = launches_for(None, k, v, None, branches, state=torch.float32)
    plan = state_plan(launches, branches, len(k), longest=None)
    with on_device_of(k):
        stream = kept_stream(k, v, *(k_map or ()))
        _sum_state(launches, k, v, state, branches, plan, stream)
    return state


def lln_read_forward(
    q: Tensor, state: LLNState, *, alpha: Tensor, cu_seqlens: Tensor, q_map: Map | None
) -> Tensor:
    q, q_map, out = unit_stride(q), _contiguous_map(q_map), q.new_empty(q.shape)
    state = LLNState(*(part.contiguous() for part in state))
    branches = Branches(cu_seqlens, alpha=alpha, q_map=q_map)
    launches = launches_for(q, None, None, out, branches, state=state.value.dtype)
    plan = tiles_plan(launches, branches, len(q), launches.output_span)
    with on_device_of(q):
        stream = kept_stream(q, *state, *(q_map or ()))
        _answer(launches, q, None, None, out, state, branches, plan, stream)
    return out


def tile_forward(
    q: Tensor,  # [T, H, D], whole blocks of one sequence, or its last ones
    k: Tensor,
    v: Tensor,
    *,
    cu_seqlens: Tensor,
    state: LLNState | None,  # of the whole sequence; None for Diag alone
    alpha: Tensor | None,
    mix: Tensor | Gate | None,
    mix_scale: Tensor | None = None,
    block_size: int,
    num_sinks: tuple[int, int],  # of them among the rows
    outside: tuple[Tensor, Tensor],  # keys and values [n, H, D] of the others
    q_map: Map | None,
) -> Tensor:
    """One tile of a long sequence, whose state and whose other sinks are given."""
    q, k, v, out = unit_stride(q), unit_stride(k), unit_stride(v), q.new_empty(q.shape)
    q_map, outside = _contiguous_map(q_map), (outside[0].contiguous(), outside[1].contiguous())
    state = state and LLNState(*(part.contiguous() for part in state))
    branches = Branches(
        *(cu_seqlens, alpha, None, *_mix_and_gate(mix), mix_scale),
        *(block_size, num_sinks, q_map),
        outside=outside if len(outside[0]) else None,
    )
    launches = launches_for(q, k, v, out, branches, state=state and state.value.dtype)
    plan = tiles_plan(launches, branches, len(q), launches.output_span)
    with on_device_of(q):
        stream = kept_stream(q, k, v, *(state or ()), *(q_map or ()), *(branches.outside or ()))
        _answer(launches, q, k, v, out, state, branches, plan, stream)
    return out


def _contiguous_map(affine: Map | None) -> Map | None:
    """The kernels take no strides for maps."""
    if affine is None:
        return None
    weight, bias = affine
    return None if weight is None else weight.contiguous(), bias.contiguous()


def _mix_and_gate(mix: float | Tensor | Gate | None) -> tuple[Any, Tensor | None]:
    """A gate's bias takes the place of a mix. The kernels take no strides for gates."""
    return (mix.bias, mix.weight.contiguous()) if isinstance(mix, Gate) else (mix, None)


def _attend_without_lln(q: Tensor, k: Tensor, v: Tensor, out: Tensor, branches: Branches) -> None:
    launches, stream = launches_for(q, k, v, out, branches), kept_stream(q, k, v)
    if branches.block_size is None:
        plan = kept_tiles_plan(launches, branches, len(q), launches.softmax_span)
        _attend_to_all(launches, q, k, v, out, branches, plan, stream)
    else:
        plan = kept_tiles_plan(launches, branches, len(q), launches.output_span)
        _answer(launches, q, k, v, out, None, branches, plan, stream)


def _attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    branches: Branches,
    shortest: int | None,
    longest: int | None,
) -> LLNState:
    short = tiles.short_tokens(q.shape[2])
    launches = launches_for(q, k, v, out, branches, state=q.dtype, short=short)
    if branches.mix is None or branches.mix.dim() == 1:  # another number of rows agrees with it
        KNOWN_CALLS.learn(key_of(q, k, v, branches), launches)
    return _launch(launches, q, k, v, out, branches, shortest, longest)


def _launch(
    launches: FormLaunches,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    branches: Branches,
    shortest: int | None,
    longest: int | None,
) -> LLNState:
    plan = forward_plan(launches, branches, len(q), shortest, longest)
    state = empty_state(k, plan.num_sequences, q.dtype)
    stream = kept_stream(q, k, v, *(branches.q_map or ()), *(branches.k_map or ()))
    if plan.short:
        _attend_to_short(launches, q, k, v, out, state, branches, plan.short, stream)
    if plan.state and plan.tiles:
        _sum_state(launches, k, v, state, branches, plan.state, stream)
        _answer(launches, q, k, v, out, state, branches, plan.tiles, stream)
    return state


def _attend_to_short(
    launches: FormLaunches,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    state: LLNState,
    branches: Branches,
    programs: Grid,
    stream: int | None,
) -> None:
    launches.short_sequences(
        *(programs, stream, q, k, v, out, state.log_mass, state.value),
        *(*(branches.q_map or ABSENT), *(branches.k_map or ABSENT)),
        *(branches.alpha, branches.beta, branches.mix, branches.gate, branches.mix_scale),
        branches.cu_seqlens,
    )


def _sum_state(
    launches: FormLaunches,
    k: Tensor,
    v: Tensor,
    state: LLNState,
    branches: Branches,
    plan: StatePlan,
    stream: int | None,
) -> None:
    """Writes the states of sequences of more than `short` tokens."""
    cu_seqlens = branches.cu_seqlens
    parts = state.log_mass  # of the same type; neither read nor written
    if plan.num_parts:
        _, num_heads, head_dim = k.shape
        parts = state.log_mass.new_empty(plan.num_parts, num_heads, head_dim + 2, head_dim)
    launches.state(
        *(plan.programs, stream, k, v, *(branches.k_map or ABSENT), branches.beta, cu_seqlens),
        *(state.log_mass, state.value, parts, plan.num_sequences),
    )
    if plan.merge_groups:
        launches.merge_groups(plan.merge_groups, stream, parts, cu_seqlens, plan.num_sequences)
    if plan.merge:
        launches.merge(plan.merge, stream, parts, cu_seqlens, state.log_mass, state.value)


def _answer(
    launches: FormLaunches,
    q: Tensor,
    k: Tensor | None,  # None without Diag
    v: Tensor | None,
    out: Tensor,
    state: LLNState | None,  # None without LLN
    branches: Branches,
    plan: TilesPlan,
    stream: int | None,
) -> None:
    """Answers the queries of sequences of more than `short` tokens."""
    launches.output(
        *(plan.programs, stream, q, k, v, out, *(state or ABSENT), *(branches.q_map or ABSENT)),
        *(branches.alpha, branches.mix, branches.gate, branches.mix_scale),
        *(*(branches.outside or ABSENT), branches.cu_seqlens),
        *(plan.listed, plan.num_listed, plan.num_sequences),
    )


def _attend_to_all(
    launches: FormLaunches,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    branches: Branches,
    plan: TilesPlan,
    stream: int | None,
) -> None:
    """Softmax over whole sequences."""
    launches.softmax(
        *(plan.programs, stream, q, k, v, out, branches.cu_seqlens),
        *(plan.listed, plan.num_listed, plan.num_sequences),
    )
