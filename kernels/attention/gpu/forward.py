"""Launches the forward kernels: tile sizes, grids, buffers. Nothing here waits for the device.

Softmax over whole sequences is one launch. LLN+Diag is one launch for the short sequences, and two
passes for the others: the state pass sums keys and values, the output pass answers the queries.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.attention.arguments import Gate, Map, PackedSequences
from kernels.attention.gpu import tiles
from kernels.attention.gpu.forward_form import NOT_SHORT, FormLaunches, launches_for
from kernels.attention.gpu.groups import num_group_slots
from kernels.attention.gpu.launch import (
    Arguments,
    Branches,
    is_captured,
    on_device_of,
    programs_by_head,
    unit_stride,
)
from kernels.attention.gpu.locate import num_slots
from kernels.attention.gpu.prepared import kept_stream
from kernels.attention.gpu.tile_list import tile_list
from kernels.attention.gpu.tiles import Span
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
    q_map, k_map = _contiguous_map(q_map), _contiguous_map(k_map)
    branches = Branches(
        *(cu_seqlens, alpha, beta, *_mix_and_gate(mix), mix_scale),
        *(block_size, num_sinks, q_map, k_map),
        packed=None if is_captured(q) else packed,
    )
    with on_device_of(q):
        if beta is None:
            _attend_without_lln(q, k, v, out, branches)
            return out, None
        state = _attend(q, k, v, out, branches=branches, shortest=shortest, longest=longest)
        return out, state if keep_state else None


def lln_state_forward(
    k: Tensor, v: Tensor, *, beta: Tensor, cu_seqlens: Tensor, k_map: Map | None
) -> LLNState:
    k, v, k_map = unit_stride(k), unit_stride(v), _contiguous_map(k_map)
    branches = Branches(cu_seqlens, beta=beta, k_map=k_map)
    state = empty_state(k, branches.num_sequences, torch.float32)
    launches = launches_for(None, k, v, None, branches, state=state)
    with on_device_of(k):
        stream = kept_stream(k, v, *(k_map or ()))
        _sum_state(launches, k, v, state, branches, longest=None, stream=stream)
    return state


def lln_read_forward(
    q: Tensor, state: LLNState, *, alpha: Tensor, cu_seqlens: Tensor, q_map: Map | None
) -> Tensor:
    q, q_map, out = unit_stride(q), _contiguous_map(q_map), q.new_empty(q.shape)
    state = LLNState(*(part.contiguous() for part in state))
    branches = Branches(cu_seqlens, alpha=alpha, q_map=q_map)
    launches = launches_for(q, None, None, out, branches, state=state)
    stream = kept_stream(q, *state, *(q_map or ()))
    with on_device_of(q):
        _answer(launches, q, None, None, out, state, branches, stream=stream)
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
    launches = launches_for(q, k, v, out, branches, state=state)
    stream = kept_stream(q, k, v, *(state or ()), *(q_map or ()), *(branches.outside or ()))
    with on_device_of(q):
        _answer(launches, q, k, v, out, state, branches, stream=stream)
    return out


def _contiguous_map(affine: Map | None) -> Map | None:
    """The kernels take no strides for maps."""
    if affine is None:
        return None
    weight, bias = affine
    return None if weight is None else weight.contiguous(), bias.contiguous()


def _mix_and_gate(mix: Tensor | Gate | None) -> tuple[Tensor | None, Tensor | None]:
    """A gate's bias takes the place of a mix. The kernels take no strides for gates."""
    return (mix.bias, mix.weight.contiguous()) if isinstance(mix, Gate) else (mix, None)


def _attend_without_lln(q: Tensor, k: Tensor, v: Tensor, out: Tensor, branches: Branches) -> None:
    launches, stream = launches_for(q, k, v, out, branches), kept_stream(q, k, v)
    if branches.block_size is None:
        _attend_to_all(launches, q, k, v, out, branches, stream=stream)
    else:
        _answer(launches, q, k, v, out, None, branches, stream=stream)


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
    """The short sequences, if any, in one launch, and the others in two passes."""
    num_rows, _, head_dim = q.shape
    state = empty_state(k, branches.num_sequences, q.dtype)
    short = tiles.short_tokens(head_dim)
    launches = launches_for(q, k, v, out, branches, state=state, short=short)
    stream = kept_stream(q, k, v, out, *(branches.q_map or ()), *(branches.k_map or ()))
    if is_captured(q):
        # A graph is replayed with other bounds than those it is captured with: it holds both.
        shortest = longest = None
    elif branches.num_sequences == 1:
        shortest = longest = num_rows
    if (shortest or 0) <= short:
        _attend_to_short(launches, q, k, v, out, state, branches, stream=stream)
    if (num_rows if longest is None else longest) > short:
        _sum_state(launches, k, v, state, branches, longest=longest, stream=stream)
        _answer(launches, q, k, v, out, state, branches, stream=stream)
    return state


def _attend_to_short(
    launches: FormLaunches,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    state: LLNState,
    branches: Branches,
    *,
    stream: int | None,
) -> None:
    q_weight, q_bias = branches.q_map or (None, None)
    k_weight, k_bias = branches.k_map or (None, None)
    launches.short_sequences(
        branches.num_sequences * launches.form.num_heads,
        stream,
        p_q=q,
        p_k=k,
        p_v=v,
        p_out=out,
        p_log_mass=state.log_mass,
        p_value=state.value,
        p_q_weight=q_weight,
        p_q_bias=q_bias,
        p_k_weight=k_weight,
        p_k_bias=k_bias,
        p_alpha=branches.alpha,
        p_beta=branches.beta,
        p_mix=branches.mix,
        p_gate=branches.gate,
        p_mix_scale=branches.mix_scale,
        p_cu_seqlens=branches.cu_seqlens,
    )


def _sum_state(
    launches: FormLaunches,
    k: Tensor,
    v: Tensor,
    state: LLNState,
    branches: Branches,
    *,
    longest: int | None,
    stream: int | None,
) -> None:
    """Writes the states of sequences of more than `short` tokens."""
    num_rows, num_heads, head_dim = k.shape
    num_sequences, piece = branches.num_sequences, launches.piece
    slots = num_slots(num_rows, num_sequences, piece, 1, piece)
    longest = num_rows if longest is None else longest
    has_parts = longest > piece  # only a sequence of several pieces leaves any behind
    part_peak = part_mass = part_sum = state.log_mass  # of the same type; neither read nor written
    if has_parts:
        part_peak = state.log_mass.new_empty(slots, num_heads, head_dim)
        part_mass = torch.empty_like(part_peak)
        part_sum = part_peak.new_empty(slots, num_heads, head_dim, head_dim)
    weight, bias = branches.k_map or (None, None)
    launches.state(
        slots * num_heads * launches.state_parts,
        stream,
        p_k=k,
        p_v=v,
        p_weight=weight,
        p_bias=bias,
        p_beta=branches.beta,
        p_cu_seqlens=branches.cu_seqlens,
        p_log_mass=state.log_mass,
        p_value=state.value,
        p_part_peak=part_peak,
        p_part_mass=part_mass,
        p_part_sum=part_sum,
        num_sequences=num_sequences,
    )
    parts = {"p_part_peak": part_peak, "p_part_mass": part_mass, "p_part_sum": part_sum}
    if longest > launches.grouped_from:
        group_slots = num_group_slots(num_rows, num_sequences, launches.group_span)
        launches.merge_groups(
            group_slots * num_heads * launches.merge_parts,
            stream,
            **parts,
            p_cu_seqlens=branches.cu_seqlens,
            num_sequences=num_sequences,
        )
    if has_parts:
        launches.merge(
            num_sequences * num_heads * launches.merge_parts,
            stream,
            **parts,
            p_cu_seqlens=branches.cu_seqlens,
            p_log_mass=state.log_mass,
            p_value=state.value,
        )


def _answer(
    launches: FormLaunches,
    q: Tensor,
    k: Tensor | None,  # None without Diag
    v: Tensor | None,
    out: Tensor,
    state: LLNState | None,  # None without LLN
    branches: Branches,
    *,
    stream: int | None,
) -> None:
    """Answers the queries of sequences of more than `short` tokens."""
    num_rows, num_heads, _ = q.shape
    log_mass, value = state or (None, None)
    weight, bias = branches.q_map or (None, None)
    outside_k, outside_v = branches.outside or (None, None)
    listed, slots = _slots(branches, num_rows, launches.output_span, launches.form.short)
    launches.output(
        programs_by_head(slots, num_heads),
        stream,
        p_q=q,
        p_k=k,
        p_v=v,
        p_out=out,
        p_log_mass=log_mass,
        p_value=value,
        p_weight=weight,
        p_bias=bias,
        p_alpha=branches.alpha,
        p_mix=branches.mix,
        p_gate=branches.gate,
        p_mix_scale=branches.mix_scale,
        p_outside_k=outside_k,
        p_outside_v=outside_v,
        **listed,
        num_sequences=branches.num_sequences,
    )


def _slots(branches: Branches, num_rows: int, span: Span, short: int) -> tuple[Arguments, int]:
    """How programs find their tiles, and how many slots there are."""
    cu_seqlens, listed = branches.cu_seqlens, tile_list(branches.packed, span, short)
    num_listed = 0 if listed is None else len(listed)
    found = {
        "p_cu_seqlens": cu_seqlens,
        "p_listed": cu_seqlens if listed is None else listed,
        "num_listed": num_listed,
    }
    if listed is None:
        return found, num_slots(num_rows, branches.num_sequences, *span.cut)
    return found, num_listed


def _attend_to_all(
    launches: FormLaunches,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    branches: Branches,
    *,
    stream: int | None,
) -> None:
    """Softmax over whole sequences."""
    num_rows, num_heads, _ = q.shape
    listed, slots = _slots(branches, num_rows, launches.softmax_span, NOT_SHORT)
    launches.softmax(
        programs_by_head(slots, num_heads),
        stream,
        p_q=q,
        p_k=k,
        p_v=v,
        p_out=out,
        **listed,
        num_sequences=branches.num_sequences,
    )
