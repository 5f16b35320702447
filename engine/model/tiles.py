"""One long sequence through the encoder, tile by tile, so that it can pause after any of them.

A layer needs of the whole sequence only LLN's state and the sinks. So a visit to a tile takes it
through one layer, and adds its keys and values to the next layer's state at once. What lives on
between visits is one row of hidden states a token, updated in place, and, where there is room, the
projections made for the next layer's state, which its own visit then need not make again.
"""

from __future__ import annotations

from typing import NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.model.attention import SoftmaxAttention, TiledAttention
from engine.model.encoder import CPU_TILE_ROWS, Encoder
from engine.types import Span
from kernels.attention import LLNState, TileSinks, merge_states

GPU_TILE_ROWS = 65_536
"""Enough to keep a large GPU busy; some milliseconds."""


class Visit(NamedTuple):
    """What one step did: these rows left this layer with these states."""

    layer: int  # -1 for the embedding that comes before the first layer
    rows: Span
    states: Tensor  # [n, W]


class LayerInput(NamedTuple):
    """What every tile of one layer must know of the whole sequence."""

    state: LLNState | None
    first: Tensor  # [S, 3, H, D] projections of the sinks at the sequence's start
    last: Tensor  # and at its end


class TiledPass:
    """The encoder over one sequence, a visit at a time. A visit that raises has changed nothing."""

    def __init__(self, encoder: Encoder, ids: NDArray[np.int32], *, keep_projections: bool) -> None:
        assert can_tile(encoder), "softmax has to see the whole sequence at once"
        assert len(ids) > 0, "there is nothing to read"
        self.tile_rows = tile_rows(encoder)
        self._encoder = encoder
        self._attention = cast(tuple[TiledAttention, ...], encoder.attention)
        self._ids = ids
        weights = encoder.weights
        like = weights.words
        self._states = like.new_empty(len(ids), weights.width)
        self._projections = (
            like.new_empty(len(ids), 3, weights.num_heads, weights.head_dim)
            if keep_projections
            else None
        )
        self._layer = -1
        self._next_row = 0
        self._input: LayerInput | None = None
        self._next_state: LLNState | None = None

    @property
    def is_done(self) -> bool:
        return self._layer == len(self._attention)

    @property
    def states(self) -> Tensor:
        """The hidden states [T, W] as far as they are computed."""
        return self._states

    @torch.inference_mode()
    def visit(self) -> Visit:
        """Take the next tile through its layer."""
        layer, rows = self._layer, self._next_tile()
        states = self._embedded(rows) if layer < 0 else self._through_layer(rows)
        projections = None
        next_state = self._next_state
        if layer + 1 < len(self._attention):
            projections = self._encoder.project(states, self._encoder.weights.layers[layer + 1])
            next_state = self._with_tile(next_state, projections)
        # All that could run out of memory has run: from here on the visit takes effect.
        self._states[rows.start : rows.end] = states
        if projections is not None and self._projections is not None:
            self._projections[rows.start : rows.end] = projections
        self._next_state = next_state
        self._next_row = rows.end
        if rows.end == len(self._ids):
            self._begin_layer(layer + 1)
        return Visit(layer, rows, states)

    def shrink(self) -> bool:
        """Halve the tiles from here on; False if they cannot be smaller."""
        block = _block_size(self._encoder)
        smaller = max(block, self.tile_rows // 2 // block * block, _fewest_rows(self._encoder))
        if smaller >= self.tile_rows:
            return False
        self.tile_rows = smaller
        return True

    def _next_tile(self) -> Span:
        """A short remainder goes with the tile before it, so that no tile ends among the sinks."""
        start, length = self._next_row, len(self._ids)
        end = start + self.tile_rows
        return Span(start, length if length - end < self._num_last_sinks else end)

    @property
    def _num_last_sinks(self) -> int:
        return max(attention.num_sinks[1] for attention in self._attention) + 1

    def _embedded(self, rows: Span) -> Tensor:
        device = self._encoder.device
        ids = torch.from_numpy(self._ids[rows.start : rows.end].astype(np.int64)).to(device)
        return self._encoder.embed(ids, torch.arange(rows.start, rows.end, device=device))

    def _begin_layer(self, layer: int) -> None:
        self._layer, self._next_row = layer, 0
        if not self.is_done:
            first, last = self._attention[layer].num_sinks
            length = len(self._ids)
            self._input = LayerInput(
                self._next_state,
                self._projected(Span(0, min(first, length))),
                self._projected(Span(max(length - last, min(first, length)), length)),
            )
        self._next_state = None

    def _through_layer(self, rows: Span) -> Tensor:
        weights = self._encoder.weights.layers[self._layer]
        whole = self._input
        assert whole is not None, "set when the layer began"
        kept = self._projections
        states = self._states[rows.start : rows.end]
        q, k, v = (
            self._encoder.project(states, weights) if kept is None else kept[rows.start : rows.end]
        ).unbind(1)
        attended = self._attention[self._layer].attend_tile(
            q, k, v, whole.state, self._sinks(whole, rows)
        )
        return self._encoder.finish(attended.flatten(1), states, weights)

    def _sinks(self, whole: LayerInput, rows: Span) -> TileSinks:
        holds_first, holds_last = rows.start == 0, rows.end == len(self._ids)
        _, k, v = torch.cat(
            [whole.first[: 0 if holds_first else None], whole.last[: 0 if holds_last else None]]
        ).unbind(1)
        inside = (
            len(whole.first) if holds_first else 0,
            len(whole.last) if holds_last else 0,
        )
        return TileSinks(inside, k, v)

    def _projected(self, rows: Span) -> Tensor:
        return self._encoder.project(
            self._states[rows.start : rows.end], self._encoder.weights.layers[self._layer]
        )

    def _with_tile(self, state: LLNState | None, projections: Tensor) -> LLNState | None:
        _, k, v = projections.unbind(1)
        gained = self._attention[self._layer + 1].state_of(k, v, len(self._ids))
        return gained if state is None or gained is None else merge_states(state, gained)


def can_tile(encoder: Encoder) -> bool:
    return not any(isinstance(one, SoftmaxAttention) for one in encoder.attention)


def tile_rows(encoder: Encoder) -> int:
    """Whole blocks, so that none lies in two tiles."""
    wanted = CPU_TILE_ROWS if encoder.device.type == "cpu" else GPU_TILE_ROWS
    block = _block_size(encoder)
    return max(block, wanted // block * block, _fewest_rows(encoder))


def _block_size(encoder: Encoder) -> int:
    attention = cast(tuple[TiledAttention, ...], encoder.attention)
    return max(one.parameters.block_size for one in attention)


def _fewest_rows(encoder: Encoder) -> int:
    """Whole blocks that hold all sinks of one end."""
    block = _block_size(encoder)
    attention = cast(tuple[TiledAttention, ...], encoder.attention)
    sinks = max(max(one.num_sinks) for one in attention)
    return -(-sinks // block) * block
