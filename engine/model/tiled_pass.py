"""One long sequence through the encoder, tile by tile. It can pause after any tile.

Of the whole sequence a layer needs only LLN's state and the sinks, and with windowed attention the
rows next to the tile. So a visit takes one tile through one layer, and adds the tile's keys and
values to the next layer's state at once. Between visits only the hidden states remain, one row per
token, updated in place. If there is room, the projections computed for the next layer's state
remain too, so the next layer's visits need not compute them again.
"""

from __future__ import annotations

import math
from typing import NamedTuple, Self, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.model.attention import SoftmaxAttention
from engine.model.encoder import CPU_TILE_ROWS, Encoder
from engine.model.tiled_attention import Tile, TiledAttention
from engine.platform.memory import on_huge_pages
from engine.types import Span
from kernels.attention import LLNState, TileSinks, merge_states

GPU_TILE_ROWS = 65_536
"""Enough to keep a large GPU busy for some milliseconds."""


class Visit(NamedTuple):
    """The result of one step: the states of some rows after a layer."""

    layer: int  # -1 for the embedding that comes before the first layer
    rows: Span
    states: Tensor  # [n, W]


class Projections(NamedTuple):
    """Queries, keys and values of some rows of one layer."""

    q: Tensor  # [n, H, D]
    k: Tensor
    v: Tensor

    def rows(self, start: int, end: int) -> Self:
        return type(self)(*(part[start:end] for part in self))

    def copied(self) -> Projections:
        return Projections(*(part.clone() for part in self))

    def with_rows_after(self, *others: Projections) -> Projections:
        return Projections(*(torch.cat(parts) for parts in zip(self, *others, strict=True)))


class SequenceSinks(NamedTuple):
    """One layer's projections of the sinks."""

    first: Projections  # at the sequence's start
    last: Projections  # and at its end


class TiledPass:
    """Runs the encoder over one sequence, visit by visit. A visit that raises changes nothing."""

    def __init__(
        self,
        encoder: Encoder,
        ids: NDArray[np.int32],
        *,
        keep_projections: bool,
        as_of_length: int = 0,
    ) -> None:
        """With `as_of_length` the tiles are those of a longer text, to measure a few of them."""
        assert can_tile(encoder), "softmax needs the whole sequence at once"
        assert len(ids) > 0, "there is nothing to read"
        self._length = as_of_length or len(ids)
        self.tile_rows = tile_rows(encoder, self._length)
        self._encoder = encoder
        self._attention = cast(tuple[TiledAttention, ...], encoder.attention)
        self._ids = ids
        weights = encoder.weights
        like = weights.words
        states = like.new_empty(len(ids), weights.width, dtype=weights.state_dtype)
        self._states = on_huge_pages(states)
        self._projections: Projections | None = None
        if keep_projections:
            shape = (3, len(ids), weights.num_heads, weights.head_dim)
            kept = like.new_empty(shape, dtype=weights.attention_dtype)
            self._projections = Projections(*on_huge_pages(kept))
        self._layer = -1
        self._next_row = 0
        self._state: LLNState | None = None  # of the current layer, complete
        self._sinks_of_layer: SequenceSinks | None = None  # read at the first tile of the layer
        self._tail: Projections | None = None  # rows of earlier tiles within a window's reach
        self._next_state: LLNState | None = None

    @property
    def is_done(self) -> bool:
        return self._layer == len(self._attention)

    @property
    def states(self) -> Tensor:
        """The hidden states [T, W], as far as they are computed."""
        return self._states

    @property
    def projections(self) -> Projections | None:
        """Projections of the next layer, once the current one is done; None if not stored."""
        return self._projections

    @torch.inference_mode()
    def visit(self) -> Visit:
        """Takes the next tile through the current layer."""
        layer, rows = self._layer, self._next_tile()
        if layer < 0:
            states, tail = self._embedded(rows), None
        else:
            states, tail = self._through_layer(rows)
        projections, next_state, whole_state = None, None, None
        ends_layer = rows.end == len(self._ids)
        if layer + 1 < len(self._attention):
            projections = self._project(layer + 1, states, rows)
            next_state = self._with_tile(layer + 1, projections, rows)
            if ends_layer:
                whole_state = self._whole_state(layer + 1, next_state)
        # Everything that may run out of memory is done. From here on the visit takes effect.
        self._states[rows.start : rows.end] = states
        if projections is not None and self._projections is not None:
            for stored, new in zip(self._projections, projections, strict=True):
                stored[rows.start : rows.end] = new
        self._next_state, self._tail, self._next_row = next_state, tail, rows.end
        self._take_effect(rows)
        if ends_layer:
            self._layer, self._next_row = layer + 1, 0
            self._state, self._next_state = whole_state, None
            self._sinks_of_layer = self._tail = None
        return Visit(layer, rows, states)

    def shrink(self) -> bool:
        """Halves the size of further tiles. Returns False if they are already minimal."""
        block, fewest = (of(self._encoder, self._length) for of in (block_size, _fewest_rows))
        smaller = max(block, self.tile_rows // 2 // block * block, fewest)
        if smaller >= self.tile_rows:
            return False
        self.tile_rows = smaller
        return True

    def _next_tile(self) -> Span:
        """Joins a short remainder to the last tile, so no tile ends among the sinks."""
        start, length = self._next_row, len(self._ids)
        end = start + self.tile_rows
        most_sinks = max(attention.num_sinks[1] for attention in self._attention)
        return Span(start, length if length - end <= most_sinks else end)

    def _embedded(self, rows: Span) -> Tensor:
        ids = torch.from_numpy(self._ids[rows.start : rows.end].astype(np.int64))
        positions = self._positions(rows)
        return self._encoder.embed(ids.to(self._encoder.device), positions, self._lengths(rows))

    def _positions(self, rows: Span) -> Tensor:
        return torch.arange(rows.start, rows.end, device=self._encoder.device)

    def _lengths(self, rows: Span) -> Tensor | int:
        """Of the texts that these rows belong to, for positions that depend on it."""
        return self._length

    def _project(self, layer: int, states: Tensor, rows: Span) -> Projections:
        made = self._encoder.layers[layer].project(states, self._positions(rows))
        return Projections(*made)

    def _through_layer(self, rows: Span) -> tuple[Tensor, Projections | None]:
        """The layer's states, and the rows of this tile within reach of the next tile's window."""
        attention = self._attention[self._layer]
        own = self._own(rows)
        seen, before, tail = own, 0, None
        if attention.reach:
            seen, before = self._with_surroundings(own, rows, attention.reach)
            upto = seen.rows(0, before + len(own.q))
            tail = upto.rows(max(len(upto.q) - attention.reach, 0), len(upto.q))
        tile = Tile(
            q=own.q,
            k=seen.k,
            v=seen.v,
            before=before,
            length=self._length,
            state=self._state,
            sinks=self._sinks(rows),
        )
        attended = attention.attend_tile(tile).flatten(1)
        states = self._states[rows.start : rows.end]
        return self._encoder.layers[self._layer].finish(attended, states), tail

    def _read_sinks(self) -> SequenceSinks:
        """Copies of the sinks' projections, since later visits change their rows."""
        first, last = self._attention[self._layer].num_sinks
        length = len(self._ids)
        first = min(first, length)
        ends = Span(0, first), Span(max(length - last, first), length)
        return SequenceSinks(*(self._own(rows).copied() for rows in ends))

    def _own(self, rows: Span) -> Projections:
        """Projections of rows that have not passed this layer yet."""
        if self._projections is None:
            return self._project(self._layer, self._states[rows.start : rows.end], rows)
        return self._projections.rows(rows.start, rows.end)

    def _with_surroundings(
        self, own: Projections, rows: Span, reach: int
    ) -> tuple[Projections, int]:
        sequence = self._sequence_of(rows)
        after = self._own(Span(rows.end, min(rows.end + reach, sequence.end)))
        if self._tail is None or rows.start == sequence.start:
            return own.with_rows_after(after), 0
        return self._tail.with_rows_after(own, after), len(self._tail.q)

    def _sinks(self, rows: Span) -> TileSinks:
        """The sinks outside the tile, and the number of those inside."""
        whole = self._sinks_of_layer = self._sinks_of_layer or self._read_sinks()
        num_first, num_last = len(whole.first.q), len(whole.last.q)
        holds_first, holds_last = self._holds_sinks(rows)
        outside = whole.first.rows(0, 0 if holds_first else num_first).with_rows_after(
            whole.last.rows(0, 0 if holds_last else num_last)
        )
        inside = (num_first if holds_first else 0, num_last if holds_last else 0)
        return TileSinks(inside, outside.k, outside.v)

    def _sequence_of(self, rows: Span) -> Span:
        """The rows that these may attend to with windows."""
        return Span(0, len(self._ids))

    def _holds_sinks(self, rows: Span) -> tuple[bool, bool]:
        """Whether these rows hold the first sinks, and the last."""
        return rows.start == 0, rows.end == len(self._ids)

    def _with_tile(self, layer: int, projections: Projections, rows: Span) -> LLNState | None:
        gained = self._state_of(layer, projections, rows)
        if gained is None or self._begins_state():
            return gained
        assert self._next_state is not None, "every earlier tile gave a state"
        return merge_states(self._next_state, gained)

    def _state_of(self, layer: int, projections: Projections, rows: Span) -> LLNState | None:
        return self._attention[layer].state_of(projections.k, projections.v, self._length)

    def _begins_state(self) -> bool:
        """Whether the next tile begins a state of its own."""
        return self._next_row == 0

    def _whole_state(self, layer: int, state: LLNState | None) -> LLNState | None:
        """LLN's state of all that a layer reads, where `state` is that of its last tiles."""
        return state

    def _take_effect(self, rows: Span) -> None:
        """Called when a visit of these rows has succeeded, before a layer ends."""


def kept_bytes(encoder: Encoder, num_tokens: int, *, keep_projections: bool) -> int:
    """Bytes that a pass over this many tokens holds between its visits."""
    weights = encoder.weights
    numbers = weights.state_dtype.itemsize
    if keep_projections:
        numbers += 3 * weights.attention_dtype.itemsize
    return num_tokens * weights.width * numbers


def can_tile(encoder: Encoder) -> bool:
    """Whether all layers can be computed tile by tile."""
    return not any(isinstance(one, SoftmaxAttention) for one in encoder.attention)


def tile_rows(encoder: Encoder, num_tokens: int) -> int:
    """Rows per tile for a text of this many tokens: whole blocks, so no block is in two tiles."""
    wanted = CPU_TILE_ROWS if encoder.device.type == "cpu" else GPU_TILE_ROWS
    block = block_size(encoder, num_tokens)
    return max(block, wanted // block * block, _fewest_rows(encoder, num_tokens))


def block_size(encoder: Encoder, num_tokens: int) -> int:
    attention = cast(tuple[TiledAttention, ...], encoder.attention)
    # Without blocks a tile could be one row, but it is never useful to be that small.
    return math.lcm(16, *(one.block_of(num_tokens) for one in attention))


def _fewest_rows(encoder: Encoder, num_tokens: int) -> int:
    """Rows of the fewest blocks that contain all sinks of one end."""
    block = block_size(encoder, num_tokens)
    attention = cast(tuple[TiledAttention, ...], encoder.attention)
    sinks = max(max(one.num_sinks) for one in attention)
    return -(-sinks // block) * block
