"""One stretch of a long sequence through the encoder, where other ranks read the other stretches.

The ranks hold neighbouring stretches of whole blocks, in order. A layer reads of the other ranks
what it reads of anything outside a tile: LLN's state, the sinks at the sequence's ends, and with
windowed attention the rows next to the stretch. All of it fits in one tensor whose size does not
depend on the length. So the ranks exchange one such tensor before each layer, and merge the states
in the order of the ranks: the bits depend on the division, not on who was first.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import NamedTuple, Self, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.model.encoder import Encoder
from engine.model.tiled_attention import TiledAttention
from engine.model.tiled_pass import (
    Projections,
    SequenceSinks,
    TiledPass,
    block_size,
)
from engine.types import Span
from kernels.attention import LLNState, merge_states


def divide(encoder: Encoder, length: int, num_ranks: int) -> tuple[Span, ...]:
    """The stretch of each rank. Where there are more ranks than units, the last have none."""
    unit = _stretch_unit(encoder, length)
    num_units = -(-length // unit)
    most_sinks = max(attention.num_sinks[1] for attention in _attention(encoder))
    if num_units > 1 and length - (num_units - 1) * unit <= most_sinks:
        num_units -= 1  # the last stretch holds all sinks at the end
    each, more = divmod(num_units, num_ranks)
    ends = [(each * rank + min(rank, more)) * unit for rank in range(1, num_ranks + 1)]
    ends = [length if end >= num_units * unit else end for end in ends]
    return tuple(Span(start, end) for start, end in zip([0, *ends], ends, strict=False))


def _stretch_unit(encoder: Encoder, length: int) -> int:
    """Whole blocks that hold all sinks of one end and reach as far as any window."""
    block = block_size(encoder, length)
    needed = max(max(*one.num_sinks, one.reach, 1) for one in _attention(encoder))
    return -(-needed // block) * block


class Edge(NamedTuple):
    """Keys and values of some neighbouring rows of one layer."""

    k: Tensor  # [n, H, D]
    v: Tensor

    @classmethod
    def of(cls, rows: Projections) -> Self:
        return cls(rows.k, rows.v)

    def upto(self, count: int) -> Edge:
        return Edge(self.k[:count], self.v[:count])

    def as_projections(self) -> Projections:
        return Projections(self.k, self.k, self.v)  # nothing asks what these rows ask for


class Contribution(NamedTuple):
    """What a rank tells the others before a layer is read."""

    state: LLNState | None
    sinks: tuple[Edge, Edge]  # at the sequence's start and end; zeros from ranks without them
    edges: tuple[Edge, Edge]  # the first and the last rows of the stretch


@dataclass(frozen=True)
class Layout:
    """How a layer's contribution lies in one row of numbers, the same for every rank."""

    num_heads: int
    head_dim: int
    has_state: bool
    num_sinks: tuple[int, int]
    reach: int

    @classmethod
    def of(cls, encoder: Encoder, layer: int, length: int) -> Self:
        attention = _attention(encoder)[layer]
        first, last = attention.num_sinks
        first = min(first, length)
        return cls(
            num_heads=encoder.weights.num_heads,
            head_dim=encoder.weights.head_dim,
            has_state=attention.has_state(length),
            num_sinks=(first, min(last, length - first)),
            reach=attention.reach,
        )

    @property
    def num_values(self) -> int:
        return sum(math.prod(shape) for shape in self._shapes)

    @property
    def _shapes(self) -> list[tuple[int, ...]]:
        head = (self.num_heads, self.head_dim)
        state = [(1, *head), (1, *head, self.head_dim)] if self.has_state else []
        counts = (*self.num_sinks, self.reach, self.reach)
        return [*state, *((2, count, *head) for count in counts)]

    def empty(self, device: torch.device) -> Tensor:
        """The row of a rank that holds no rows."""
        row = torch.zeros(self.num_values, device=device)
        if self.has_state:
            row[: self.num_heads * self.head_dim] = -torch.inf  # the mass of no tokens
        return row

    def pack(self, given: Contribution) -> Tensor:
        state = [] if given.state is None else list(given.state)
        rows = [torch.stack(part) for part in (*given.sinks, *given.edges)]
        return torch.cat([part.float().flatten() for part in (*state, *rows)])

    def unpack(self, row: Tensor, dtype: torch.dtype) -> Contribution:
        sizes = [math.prod(shape) for shape in self._shapes]
        parts = [
            part.view(shape)
            for part, shape in zip(torch.split(row, sizes), self._shapes, strict=True)
        ]
        state = LLNState(*parts[:2]) if self.has_state else None
        first, last, begin, end = (Edge(*part.to(dtype)) for part in parts[-4:])
        return Contribution(state, (first, last), (begin, end))


class StretchPass(TiledPass):
    """Reads the rows of one stretch. After the last tile of a layer, the next layer must
    `receive` what all ranks contributed."""

    def __init__(
        self,
        encoder: Encoder,
        ids: NDArray[np.int32],
        stretches: Sequence[Span],
        rank: int,
        *,
        keep_projections: bool,
    ) -> None:
        """`ids` are those of the rank's own stretch."""
        length = stretches[-1].end
        super().__init__(encoder, ids, keep_projections=keep_projections, as_of_length=length)
        self._stretches = stretches
        self._rank = rank
        self._stretch = stretches[rank]
        assert len(ids) == self._stretch.end - self._stretch.start, "the ids are the stretch's"
        self._before: Projections | None = None  # the rows before the stretch, within reach
        self._after: Projections | None = None
        self.awaits_others = False
        """Whether the next visit needs what the other ranks contribute."""

    def contribution(self) -> Tensor:
        """This rank's row of the exchange before the next layer."""
        layout = self._layout
        first, last = self._holds_sinks(Span(0, len(self._ids)))
        num_first, num_last = layout.num_sinks
        rows, reach = len(self._ids), min(layout.reach, len(self._ids))
        sinks = (
            self._edge(0, num_first if first else 0, num_first),
            self._edge(rows - num_last if last else rows, rows, num_last),
        )
        edges = (self._edge(0, reach, layout.reach), self._edge(rows - reach, rows, layout.reach))
        return layout.pack(Contribution(self._state, sinks, edges))

    def receive(self, gathered: Tensor) -> None:
        """What every rank contributed, [ranks, values]."""
        dtype = self._encoder.weights.attention_dtype
        given = [self._layout.unpack(row, dtype) for row in gathered]
        states = [one.state for one in given if one.state is not None]
        holders = [rank for rank, rows in enumerate(self._stretches) if rows.end > rows.start]
        if states:
            self._state = reduce(merge_states, (states[rank] for rank in holders))
        first, last = given[0].sinks[0], given[holders[-1]].sinks[1]
        self._sinks_of_layer = SequenceSinks(first.as_projections(), last.as_projections())
        self._before = self._after = None
        if self._layout.reach and self._rank > 0:
            self._before = given[self._rank - 1].edges[1].as_projections()
        if self._layout.reach and self._rank < holders[-1]:
            begin, end = self._stretches[self._rank + 1]
            near = given[self._rank + 1].edges[0].upto(end - begin)
            self._after = near.as_projections()
        self.awaits_others = False

    @property
    def _layout(self) -> Layout:
        return Layout.of(self._encoder, self._layer, self._length)

    def _edge(self, start: int, end: int, count: int) -> Edge:
        """Some of the rank's rows, and zeros up to a count."""
        edge = Edge.of(self._own(Span(start, end)))
        missing = count - (end - start)
        if not missing:
            return edge
        return Edge(*(torch.cat([part, part.new_zeros(missing, *part.shape[1:])]) for part in edge))

    def _positions(self, rows: Span) -> Tensor:
        return super()._positions(rows) + self._stretch.start

    def _holds_sinks(self, rows: Span) -> tuple[bool, bool]:
        first, last = super()._holds_sinks(rows)
        begins, ends = self._stretch.start == 0, self._stretch.end == self._length
        return first and begins, last and ends

    def _read_sinks(self) -> SequenceSinks:
        raise AssertionError("the sinks are received")

    def _with_surroundings(
        self, own: Projections, rows: Span, reach: int
    ) -> tuple[Projections, int]:
        after = self._own(Span(rows.end, min(rows.end + reach, len(self._ids))))
        missing = reach - len(after.q)
        if missing and self._after is not None:
            after = after.with_rows_after(self._after.rows(0, missing))
        before = self._before if rows.start == 0 else self._tail
        if before is None:
            return own.with_rows_after(after), 0
        return before.with_rows_after(own, after), len(before.q)

    def _take_effect(self, rows: Span) -> None:
        is_last_layer = self._layer + 1 == len(self._attention)
        self.awaits_others = rows.end == len(self._ids) and not is_last_layer


def _attention(encoder: Encoder) -> tuple[TiledAttention, ...]:
    return cast(tuple[TiledAttention, ...], encoder.attention)
