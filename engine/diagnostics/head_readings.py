"""Reads several instruments off the heads of one layer, a few heads at a time to bound memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import ceil
from time import perf_counter
from typing import NamedTuple

import numpy as np
import torch

from engine.diagnostics.head_group import HeadGroup, HeadSummary
from engine.diagnostics.head_view import HeadView, LayerInput
from engine.diagnostics.instrument import Instrument
from engine.diagnostics.lln_diag import DiagWeightBuffer
from engine.diagnostics.parallel import run_parallel
from engine.diagnostics.readings import Effort, Floats, Quantity, Reading
from engine.diagnostics.similarity import summarise
from engine.steps import Steps

_TOKENS_A_GROUP = 16_384
"""Heads times tokens of a group of heads, whose instruments share what they have in memory."""

MAX_PARALLEL_GROUPS = 4

_TOKENS_IN_MEMORY = MAX_PARALLEL_GROUPS * _TOKENS_A_GROUP
"""Heads times tokens of all groups that are read in parallel."""

_MATRIX_BYTES = 64 * 2**20
"""What the attention matrices of one group of heads may take."""

_FLOAT64_BYTES = 8


class TimedReading(NamedTuple):
    reading: Reading
    compute_s: float


class _GroupReadings(NamedTuple):
    readings: list[TimedReading]  # in the order of the instruments
    summary: HeadSummary | None


@torch.no_grad()
def read_heads(
    view: HeadView,
    instruments: Sequence[Instrument],
    effort: Effort,
    buffer: DiagWeightBuffer | None = None,
) -> Steps[dict[str, TimedReading]]:
    """What the instruments read, in their order. Steps that two of them share counts for the first.

    `buffer` may be one that another layer has used.
    """
    alone = [one for one in instruments if not one.compares_heads]
    comparing = [one for one in instruments if one.compares_heads]
    states = None if view.x is None else LayerInput(view.x, effort.dtype_of(view.num_tokens))
    if states is not None and any("x" in one.needs for one in alone):
        yield from states.prepare()
    groups = list(_head_groups(view, effort)) if alone else []
    if comparing and groups:
        buffer = buffer or DiagWeightBuffer()
        buffer.open_for(view, effort)
    else:
        buffer = None
    runs = (_read_group(view, group, alone, effort, states, buffer) for group in groups)
    by_group = yield from run_parallel(runs, _num_threads(view, len(groups)))
    found = {
        one.name: _joined([group.readings[index] for group in by_group])
        for index, one in enumerate(alone)
    }
    summaries = [group.summary for group in by_group if group.summary is not None]
    weights = None if buffer is None else buffer.weights
    for one in comparing:
        all_heads = HeadGroup(view, effort, states, summaries, weights)
        found[one.name] = yield from timed(one.measure(all_heads))
    return {one.name: found[one.name] for one in instruments}


def _head_groups(view: HeadView, effort: Effort) -> Iterator[list[int]]:
    keeps_matrices = view.attention != "lln" and view.num_tokens <= effort.max_matrix_tokens
    size = _heads_a_group(view.num_heads, view.num_tokens, keeps_matrices)
    for start in range(0, view.num_heads, size):
        yield list(range(start, min(start + size, view.num_heads)))


def _heads_a_group(num_heads: int, num_tokens: int, keeps_matrices: bool) -> int:
    size = min(num_heads, max(1, _TOKENS_A_GROUP // num_tokens))
    if not keeps_matrices:
        return size
    fitting = max(1, _MATRIX_BYTES // (num_tokens**2 * _FLOAT64_BYTES))
    if fitting >= size:
        return size
    threads = torch.get_num_threads()
    turns = ceil(num_heads / (fitting * threads))
    return ceil(num_heads / (turns * threads))  # as even as possible over the threads


def kept_matrix_bytes(num_heads: int, num_tokens: int, effort: Effort) -> int:
    """Upper bound of the attention matrices that instruments keep at one time."""
    if num_tokens > effort.max_matrix_tokens:
        return 0
    group = _heads_a_group(num_heads, num_tokens, True)
    return torch.get_num_threads() * group * num_tokens**2 * _FLOAT64_BYTES


def _num_threads(view: HeadView, num_groups: int) -> int:
    """How many groups are read in parallel: a short text has a single group, and of a very long one
    a single group fits in memory."""
    if view.q.device.type != "cpu":
        return 1
    in_memory = _TOKENS_IN_MEMORY // max(_TOKENS_A_GROUP, view.num_tokens)
    return max(1, min(torch.get_num_threads(), num_groups, in_memory))


def _read_group(
    view: HeadView,
    group: list[int],
    instruments: Sequence[Instrument],
    effort: Effort,
    states: LayerInput | None,
    buffer: DiagWeightBuffer | None,
) -> Steps[_GroupReadings]:
    weights = None if buffer is None else buffer.of(group)
    heads = HeadGroup(view.only(group), effort, states, buffer=weights)
    readings: list[TimedReading] = []
    for one in instruments:
        reading = yield from timed(one.measure(heads))
        readings.append(reading)
    fits = buffer is not None and buffer.is_large_enough
    return _GroupReadings(readings, (yield from summarise(heads)) if fits else None)


def timed(steps: Steps[Reading]) -> Steps[TimedReading]:
    """The reading with the time that its steps took, without the pauses between them."""
    seconds = 0.0
    while True:
        started_at = perf_counter()
        try:
            next(steps)
        except StopIteration as end:
            reading: Reading = end.value
            return TimedReading(reading, seconds + perf_counter() - started_at)
        seconds += perf_counter() - started_at
        yield


def _joined(parts: Sequence[TimedReading]) -> TimedReading:
    readings = [part.reading for part in parts]
    first = readings[0]
    joined = Reading(
        values=np.concatenate([one.values for one in readings]),
        error=_joined_errors(readings),
        method="; ".join(dict.fromkeys(one.method for one in readings)),
        unit=first.unit,
        cost=first.cost,
        beside={
            name: _joined_quantities([one.beside[name] for one in readings])
            for name in first.beside
        },
        labels=None
        if first.labels is None
        else tuple(label for one in readings for label in one.labels or ()),
    )
    return TimedReading(joined, sum(part.compute_s for part in parts))


def _joined_quantities(parts: Sequence[Quantity]) -> Quantity:
    return Quantity(
        values=np.concatenate([part.values for part in parts]),
        unit=parts[0].unit,
        error=_joined_errors(parts),
    )


def _joined_errors(parts: Sequence[Reading] | Sequence[Quantity]) -> Floats | None:
    """None if all parts are exact; an exact part beside inexact ones has an error of 0."""
    if all(part.error is None for part in parts):
        return None
    return np.concatenate(
        [np.zeros_like(part.values) if part.error is None else part.error for part in parts]
    )
