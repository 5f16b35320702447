"""Reading several instruments off one layer, a few heads at a time so that memory stays small."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from time import perf_counter
from typing import NamedTuple

import numpy as np
import torch

from engine.diagnostics.base import Effort, Floats, Instrument, Quantity, Reading
from engine.diagnostics.heads import KEPT_BYTES, Heads
from engine.diagnostics.kept import Kept, bytes_left, left_by
from engine.diagnostics.states import States
from engine.diagnostics.view import HeadView
from engine.diagnostics.work import Work

_TOKENS_A_GROUP = 32_768
"""Heads times tokens whose instruments share what they hold in memory."""


class TimedReading(NamedTuple):
    reading: Reading
    compute_s: float


@torch.no_grad()
def read_heads(
    view: HeadView, instruments: Sequence[Instrument], effort: Effort
) -> Work[dict[str, TimedReading]]:
    """What the instruments read, in their order. What two of them share counts for the first."""
    parts: dict[str, list[TimedReading]] = {one.name: [] for one in instruments}
    states = None if view.x is None else States(view.x, effort.dtype_of(view.num_tokens))
    comparing = [one for one in instruments if one.compares_heads]
    kept: list[Kept] = []
    for group in _head_groups(view):
        heads = Heads(view.only(group), effort, states)
        for one in instruments:
            if not one.compares_heads:
                parts[one.name].append((yield from timed(one.measure(heads))))
        if comparing and bytes_left(heads) * view.num_heads <= KEPT_BYTES:
            kept.append((yield from left_by(heads)))
    for one in comparing:
        parts[one.name].append((yield from timed(one.measure(Heads(view, effort, states, kept)))))
    return {name: _joined(found) for name, found in parts.items()}


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
