"""The encoder over packed sequences: token ids in, one state per token out, no padding anywhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from engine.block_size import LongBlock
from engine.model.attention import LayerAttention
from engine.model.layers import Layer, layer_norm, layers_of
from engine.model.positions import (
    LearnedPositions,
    lengths_of_rows,
    positions_in_sequences,
)
from engine.model.straight import straight_pass
from engine.model.weights import EncoderWeights
from engine.types import PositionScheme
from kernels.attention import PackedSequences

Attend = Callable[[Tensor, Tensor, Tensor, PackedSequences], Tensor]
"""q, k, v of shape [T, H, D] and their sequences to what attention gives, [T, H, D]."""

Tap = Callable[[int, Tensor, Tensor, Tensor], None]
"""Called with a layer's index and its q, k, v of shape [T, H, D]."""

CPU_TILE_ROWS = 1024
"""Tokens that pass through a layer's products together on a CPU, so that what lies between two
products stays in cache. A GPU takes all rows at once."""


class Encoder:
    """A transformer encoder of any family, each layer with the attention chosen for it."""

    def __init__(
        self,
        weights: EncoderWeights,
        attention: Sequence[LayerAttention],
        *,
        positions: PositionScheme = "tile",
        block_size: int = 0,
        long_block: LongBlock | None = None,
    ) -> None:
        assert len(attention) == len(weights.layers), "one attention a layer"
        self.weights = weights
        self.attention = tuple(attention)
        self.layers = layers_of(weights)
        table = weights.positions
        self._positions = None
        if table is not None:
            self._positions = LearnedPositions(table, positions, block_size, long_block)

        self._straight = straight_pass(weights, self.attention)

    @property
    def device(self) -> torch.device:
        return self.weights.words.device

    @property
    def reads_lengths(self) -> bool:
        """Whether a token's position depends on how long its sequence is."""
        return self._positions is not None and self._positions.scheme != "tile"

    def __call__(self, ids: Tensor, bounds: Sequence[int], tap: Tap | None = None) -> Tensor:
        """States [T, W] of ids [T], which hold the sequences between consecutive bounds."""
        straight = self._straight if tap is None and len(bounds) == 2 else None
        if straight is not None and straight.takes(ids):
            return straight(ids)
        for states in self.walk(ids, bounds, tap):
            last = states
        return last

    def walk(
        self,
        ids: Tensor,
        bounds: Sequence[int],
        tap: Tap | None = None,
        *,
        attention: Sequence[Attend] | None = None,
    ) -> Iterator[Tensor]:
        """The same, layer by layer: the states after each. `attention` runs in place of the
        encoder's own."""
        packed = PackedSequences.of(bounds, self.device)
        positions = positions_in_sequences(bounds, self.device)
        x = self._first_states(ids, bounds, positions)
        chosen = self.attention if attention is None else attention
        for index, (layer, attend) in enumerate(zip(self.layers, chosen, strict=True)):
            q, k, v = layer.project(x, positions)
            if tap is not None:
                tap(index, q, k, v)
            x = self._finish(attend(q, k, v, packed).flatten(1), x, layer)
            yield x

    def first_states(self, ids: Tensor, bounds: Sequence[int]) -> Tensor:
        """What the first layer reads [T, W], of ids as `walk` takes them."""
        return self._first_states(ids, bounds, positions_in_sequences(bounds, self.device))

    def _first_states(self, ids: Tensor, bounds: Sequence[int], positions: Tensor) -> Tensor:
        lengths = lengths_of_rows(bounds, self.device) if self.reads_lengths else 0
        return self.embed(ids, positions, lengths)

    def projected(
        self, layer: int, states: Tensor, bounds: Sequence[int]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """q, k, v [T, H, D] of a layer that reads these states."""
        return self.layers[layer].project(states, positions_in_sequences(bounds, self.device))

    def embed(self, ids: Tensor, positions: Tensor, lengths: Tensor | int) -> Tensor:
        """The states before the first layer [T, W], of ids [T] at positions [T] of sequences of
        these lengths, a number or [T]; 0 will do unless `reads_lengths`."""
        x = F.embedding(ids, self.weights.words)
        if self._positions is not None:
            x = x + self._positions(positions, lengths)
        return layer_norm(x, self.weights.embedding_norm, self.weights.norm_eps)

    def _finish(self, attended: Tensor, x: Tensor, layer: Layer) -> Tensor:
        """Everything after attention, tile by tile: it looks at one token at a time."""
        if x.device.type != "cpu" or x.shape[0] <= CPU_TILE_ROWS:
            return layer.finish(attended, x)
        tiles = zip(
            torch.split(attended, CPU_TILE_ROWS), torch.split(x, CPU_TILE_ROWS), strict=True
        )
        return torch.cat([layer.finish(*tile) for tile in tiles])
