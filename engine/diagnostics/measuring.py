"""Reading several instruments off one layer, a few heads at a time so that memory stays small."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from time import perf_counter
from typing import NamedTuple

import numpy as np
import torch

from engine.diagnostics.base import Effort, Floats, Instrument, Quantity, Reading
from engine.diagnostics.heads import KEPT_BYTES, Heads
from engine.diagnostics.kept import Kept, LayerRoom, left_by
from engine.diagnostics.side_by_side import side_by_side
from engine.diagnostics.states import States
from engine.diagnostics.view import HeadView
from engine.diagnostics.work import Work

_TOKENS_A_GROUP = 16_384
"""Heads times tokens whose instruments share what they hold in memory."""

_TOKENS_AT_A_TIME = 4 * _TOKENS_A_GROUP
"""The same of all groups that are read side by side."""


class TimedReading(NamedTuple):
    reading: Reading
    compute_s: float


class _OfGroup(NamedTuple):
    """What was read of some heads, in the order of the instruments."""

    readings: list[TimedReading]
    kept: Kept | None


@torch.no_grad()
def read_heads(
    view: HeadView,
    instruments: Sequence[Instrument],
    effort: Effort,
    room: LayerRoom | None = None,
) -> Work[dict[str, TimedReading]]:
    """What the instruments read, in their order. What two of them share counts for the first.

    `room` may be one that another layer has used.
    """
    alone = [one for one in instruments if not one.compares_heads]
    comparing = [one for one in instruments if one.compares_heads]
    states = None if view.x is None else States(view.x, effort.dtype_of(view.num_tokens))
    if states is not None and any("x" in one.needs for one in alone):
        yield from states.prepare()
    groups = list(_head_groups(view)) if alone else []
    room = _opened(room, view, effort) if comparing and groups else None
    works = (_read_group(view, group, alone, effort, states, room) for group in groups)
    of_groups = yield from side_by_side(works, _num_threads(view, len(groups)))
    found = {
        one.name: _joined([group.readings[index] for group in of_groups])
        for index, one in enumerate(alone)
    }
    kept = [group.kept for group in of_groups if group.kept is not None]
    for one in comparing:
        together = Heads(view, effort, states, kept, None if room is None else room.weights)
        found[one.name] = yield from timed(one.measure(together))
    return {one.name: found[one.name] for one in instruments}


def _opened(room: LayerRoom | None, view: HeadView, effort: Effort) -> LayerRoom:
    room = LayerRoom(KEPT_BYTES) if room is None else room
    room.open_for(view, effort)
    return room


def _read_group(
    view: HeadView,
    group: list[int],
    instruments: Sequence[Instrument],
    effort: Effort,
    states: States | None,
    room: LayerRoom | None,
) -> Work[_OfGroup]:
    heads = Heads(view.only(group), effort, states, room=None if room is None else room.of(group))
    readings: list[TimedReading] = []
    for one in instruments:
        reading = yield from timed(one.measure(heads))
        readings.append(reading)
    is_kept = room is not None and room.is_large_enough
    return _OfGroup(readings, (yield from left_by(heads)) if is_kept else None)


def _num_threads(view: HeadView, num_groups: int) -> int:
    """How many groups are read at a time: of a few tokens there is but one, of very many the
    memory holds but one."""
    if view.q.device.type != "cpu":
        return 1
    in_memory = _TOKENS_AT_A_TIME // max(_TOKENS_A_GROUP, view.num_tokens)
    return max(1, min(torch.get_num_threads(), num_groups, in_memory))


def timed(work: Work[Reading]) -> Work[TimedReading]:
    """The reading with the time that its work took, whatever ran between its steps."""
    seconds = 0.0
    while True:
        started_at = perf_counter()
        try:
            next(work)
        except StopIteration as end:
            reading: Reading = end.value
            return TimedReading(reading, seconds + perf_counter() - started_at)
        seconds += perf_counter() - started_at
        yield


def _head_groups(view: HeadView) -> Iterator[list[int]]:
    size = max(1, _TOKENS_A_GROUP // view.num_tokens)
    for start in range(0, view.num_heads, size):
        yield list(range(start, min(start + size, view.num_heads)))


def _joined(parts: Sequence[TimedReading]) -> TimedReading:
    readings = [part.reading for part in parts]
    first = readings[0]
    joined = Reading(
        values=np.concatenate([one.values for one in readings]),
        error=_joined_errors([(one.values, one.error) for one in readings]),
        method="; ".join(dict.fromkeys(one.method for one in readings)),
        unit=first.unit,
        cost=first.cost,
        beside={
            name: _joined_quantities([one.beside[name] for one in readings])
            for name in first.beside
        },
    )
    return TimedReading(joined, sum(part.compute_s for part in parts))


def _joined_quantities(parts: Sequence[Quantity]) -> Quantity:
    return Quantity(
        values=np.concatenate([part.values for part in parts]),
        unit=parts[0].unit,
        error=_joined_errors([(part.values, part.error) for part in parts]),
    )


def _joined_errors(parts: Sequence[tuple[Floats, Floats | None]]) -> Floats | None:
    """Heads read exactly beside others that were not have no error."""
    if all(error is None for _, error in parts):
        return None
    return np.concatenate(
        [np.zeros_like(values) if error is None else error for values, error in parts]
    )
