"""How many programs the launches of a forward call have: a matter of its form and its bounds.

Kept with the bounds, since every layer of a batch asks for the same.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from kernels.attention.gpu.forward_form import FormLaunches
from kernels.attention.gpu.groups import num_group_slots
from kernels.attention.gpu.launch import Branches, Grid, programs_by_head
from kernels.attention.gpu.locate import num_slots
from kernels.attention.gpu.tile_list import tile_list
from kernels.attention.gpu.tiles import Span


class StatePlan(NamedTuple):
    """The launches that write the states of sequences that are not short."""

    num_sequences: int
    programs: Grid
    num_parts: int  # slots for what pieces leave behind; 0 where no sequence has several pieces
    merge_groups: Grid | None  # None where no sequence has groups of pieces
    merge: Grid | None  # None where no sequence has several pieces


class TilesPlan(NamedTuple):
    """The launch that answers the queries of sequences that are not short."""

    num_sequences: int
    programs: Grid
    listed: Tensor  # the batch's tiles; its bounds where there is no list
    num_listed: int  # 0 where there is no list


class ForwardPlan(NamedTuple):
    """LLN+Diag: the short sequences in one launch, the others in two passes."""

    num_sequences: int
    short: Grid | None  # None where no sequence is short
    state: StatePlan | None  # None where all are
    tiles: TilesPlan | None  # likewise


def forward_plan(
    launches: FormLaunches,
    branches: Branches,
    num_rows: int,
    shortest: int | None,  # no sequence has fewer tokens, where that is known
    longest: int | None,  # no sequence has more, where that is known
) -> ForwardPlan:
    packed = branches.packed
    if packed is None:
        return _forward_plan(launches, branches, num_rows, shortest, longest)
    plan: ForwardPlan | None = packed.kept.get(launches)
    if plan is None:
        plan = _forward_plan(launches, branches, num_rows, packed.shortest, packed.longest)
        packed.kept[launches] = plan
    return plan


def _forward_plan(
    launches: FormLaunches,
    branches: Branches,
    num_rows: int,
    shortest: int | None,
    longest: int | None,
) -> ForwardPlan:
    short, num_sequences = launches.form.short, branches.num_sequences
    has_short = (shortest or 0) <= short
    has_others = (num_rows if longest is None else longest) > short
    return ForwardPlan(
        num_sequences,
        short=(num_sequences * launches.form.num_heads, 1, 1) if has_short else None,
        state=state_plan(launches, branches, num_rows, longest) if has_others else None,
        tiles=tiles_plan(launches, branches, num_rows, launches.output_span)
        if has_others
        else None,
    )


def state_plan(
    launches: FormLaunches, branches: Branches, num_rows: int, longest: int | None
) -> StatePlan:
    num_sequences, num_heads = branches.num_sequences, launches.form.num_heads
    piece, longest = launches.piece, num_rows if longest is None else longest
    slots = num_slots(num_rows, num_sequences, piece, 1, piece)
    merge_groups = merge = None
    if longest > launches.grouped_from:
        groups = num_group_slots(num_rows, num_sequences, launches.group_span)
        merge_groups = groups * num_heads * launches.merge_parts, 1, 1
    if longest > piece:  # only a sequence of several pieces leaves any behind
        merge = num_sequences * num_heads * launches.merge_parts, 1, 1
    return StatePlan(
        num_sequences,
        programs=(slots * num_heads * launches.state_parts, 1, 1),
        num_parts=slots if merge else 0,
        merge_groups=merge_groups,
        merge=merge,
    )


def kept_tiles_plan(
    launches: FormLaunches, branches: Branches, num_rows: int, span: Span
) -> TilesPlan:
    """Without LLN these are all launches of a call."""
    packed = branches.packed
    if packed is None:
        return tiles_plan(launches, branches, num_rows, span)
    plan: TilesPlan | None = packed.kept.get(launches)
    if plan is None:
        plan = packed.kept[launches] = tiles_plan(launches, branches, num_rows, span)
    return plan


def tiles_plan(launches: FormLaunches, branches: Branches, num_rows: int, span: Span) -> TilesPlan:
    form, num_sequences = launches.form, branches.num_sequences
    listed = tile_list(branches.packed, span, form.short)
    slots = num_slots(num_rows, num_sequences, *span.cut) if listed is None else len(listed)
    return TilesPlan(
        num_sequences,
        programs=programs_by_head(slots, form.num_heads),
        listed=branches.cu_seqlens if listed is None else listed,
        num_listed=0 if listed is None else len(listed),
    )
