"""Some segments of a document through the encoder, beside segments that were read before.

Each segment has positions and blocks of its own. Of the other segments it reads what LLN+Diag reads
of anything outside a block: in each layer the merged LLN state of all segments, and the sinks at
the document's ends. Segments that were read before give both from memory, and cost nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.model.encoder import Encoder
from engine.model.tiled_pass import Projections, SequenceSinks, TiledPass
from engine.types import Span
from kernels.attention import LLNState, merge_states

LayerStates = tuple[LLNState | None, ...]  # one for each layer; None where LLN has no share


class SinkRows(NamedTuple):
    """Keys and values of the sinks at one end of a document."""

    k: tuple[Tensor, ...]  # by layer, [n, H, D]; layers with windows have none
    v: tuple[Tensor, ...]

    def to(self, device: torch.device) -> SinkRows:
        return SinkRows(*(tuple(rows.to(device) for rows in part) for part in self))


class Reading(NamedTuple):
    """One segment of a document, in order: its number of rows, or its states from before."""

    num_rows: int = 0
    states: LayerStates = ()

    @property
    def is_kept(self) -> bool:
        return not self.num_rows


class SegmentedPass(TiledPass):
    """Reads the segments that have rows, one after the other, layer by layer."""

    def __init__(
        self,
        encoder: Encoder,
        ids: NDArray[np.int32],
        readings: Sequence[Reading],
        *,
        length: int,
        keep_projections: bool,
        first_sinks: SinkRows | None = None,
        last_sinks: SinkRows | None = None,
    ) -> None:
        """`length` is that of the whole document. The sinks of an end are needed where the segment
        at that end is kept."""
        super().__init__(encoder, ids, keep_projections=keep_projections, as_of_length=length)
        assert readings[0].num_rows or first_sinks is not None, "the first sinks are known"
        assert readings[-1].num_rows or last_sinks is not None, "the last sinks are known"
        self._readings = readings
        ends = np.cumsum([reading.num_rows for reading in readings if not reading.is_kept])
        self._ends = ends.tolist()
        self._starts = [0, *self._ends[:-1]]
        self._outer_sinks = (first_sinks, last_sinks)
        num_layers = len(encoder.weights.layers)
        self.states_read: list[list[LLNState | None]] = [[] for _ in range(num_layers)]
        """The states of the segments that have rows, by layer."""
        self._sinks_read: list[SequenceSinks] = []

    @property
    def sinks_read(self) -> tuple[SinkRows, SinkRows]:
        """The sinks at both ends of the document, once it is read."""
        ends = zip(*self._sinks_read, strict=True)
        first, last = (
            SinkRows(tuple(rows.k for rows in end), tuple(rows.v for rows in end)) for end in ends
        )
        return first, last

    def _segment_of(self, row: int) -> int:
        """The segment of a row, or the last one behind the last row."""
        found = int(np.searchsorted(self._ends, row, side="right"))
        return min(found, len(self._ends) - 1)

    def _next_tile(self) -> Span:
        start = self._next_row
        segment = self._segment_of(start)
        end, most_sinks = start + self.tile_rows, max(one.num_sinks[1] for one in self._attention)
        last = self._ends[segment]
        return Span(start, last if last - end <= most_sinks else end)

    def _positions(self, rows: Span) -> Tensor:
        start = self._sequence_of(rows).start
        return torch.arange(rows.start - start, rows.end - start, device=self._encoder.device)

    def _sequence_of(self, rows: Span) -> Span:
        segment = self._segment_of(rows.start)
        return Span(self._starts[segment], self._ends[segment])

    def _begins_state(self) -> bool:
        return self._next_row in self._starts

    def _whole_state(self, layer: int, state: LLNState | None) -> LLNState | None:
        """All segments' states merged in their order, whichever of them were kept: the same
        document gives the same bits."""
        if state is None:
            return None
        read = iter([*self.states_read[layer], state])
        states = [
            reading.states[layer] if reading.is_kept else next(read) for reading in self._readings
        ]
        return reduce(merge_states, [one for one in states if one is not None])

    def _take_effect(self, rows: Span) -> None:
        layer = self._layer + 1
        if layer < len(self._attention) and rows.end in self._ends:
            self.states_read[layer].append(self._next_state)

    def _holds_sinks(self, rows: Span) -> tuple[bool, bool]:
        first, last = super()._holds_sinks(rows)
        return (
            first and not self._readings[0].is_kept,
            last and not self._readings[-1].is_kept,
        )

    def _read_sinks(self) -> SequenceSinks:
        own = super()._read_sinks()
        first, last = (
            read if kept is None else _of_layer(kept, self._layer)
            for read, kept in zip(own, self._outer_sinks, strict=True)
        )
        sinks = SequenceSinks(first, last)
        self._sinks_read.append(sinks)
        return sinks


def _of_layer(sinks: SinkRows, layer: int) -> Projections:
    k, v = sinks.k[layer], sinks.v[layer]
    return Projections(k, k, v)  # nothing asks what a sink outside the tile asks for
