"""The encoder over packed sequences: token ids in, one state per token out, without padding.

`ShortTextPath` is a fast path for one short text on a CPU, `ShortBatches` for several. They give
the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from copy import copy
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from engine.checkpoint.block_size import LongBlock
from engine.model.attention import (
    BlockDiagonalAttention,
    LayerAttention,
    LLNDiagAttention,
    SoftmaxAttention,
)
from engine.model.layers import Layer, layer_norm, layers_of
from engine.model.linear import try_products
from engine.model.positions import LearnedPositions, lengths_of_rows, positions_in_sequences
from engine.model.short_batches import ShortBatches, short_batches
from engine.model.short_layers import ShortLayers, float_layers, int8_layers, norm_of
from engine.model.weights import EncoderWeights
from engine.platform.float_products import whole_counts
from engine.platform.row_pieces import common_count
from engine.types import PositionScheme
from kernels.attention import PackedSequences

Attend = Callable[[Tensor, Tensor, Tensor, PackedSequences], Tensor]
"""Maps q, k, v of shape [T, H, D] and their sequences to attention's output, [T, H, D]."""

Tap = Callable[[int, Tensor, Tensor, Tensor], None]
"""Called with a layer's index and its q, k, v of shape [T, H, D]."""

CPU_TILE_ROWS = 1024
"""Rows that a CPU takes through a layer's products together, so intermediate results stay in cache.
A GPU takes all rows at once."""


class Encoder:
    """A transformer encoder of any family, with an attention for each layer."""

    def __init__(
        self,
        weights: EncoderWeights,
        attention: Sequence[LayerAttention],
        *,
        positions: PositionScheme = "tile",
        block_size: int = 0,
        long_block: LongBlock | None = None,
    ) -> None:
        assert len(attention) == len(weights.layers), "one attention per layer"
        self.weights = weights
        self.attention = tuple(attention)
        self.layers = layers_of(weights)
        try_products(weights)
        table = weights.positions
        self._positions = None
        if table is not None:
            self._positions = LearnedPositions(table, positions, block_size, long_block)
        self._short_text_path = short_text_path(weights, self.attention)
        self._short_batches = self._find_short_batches()

    def with_weights(self, weights: EncoderWeights) -> Encoder:
        """The same encoder with other weights, or with its own in another layout."""
        made = copy(self)
        made.weights, made.layers = weights, layers_of(weights)
        made._short_text_path = short_text_path(weights, self.attention)
        made._short_batches = made._find_short_batches()
        return made

    def _find_short_batches(self) -> ShortBatches | None:
        path = self._short_text_path
        return None if path is None else short_batches(self.weights, most=path.most)

    @property
    def device(self) -> torch.device:
        return self.weights.words.device

    @property
    def reads_lengths(self) -> bool:
        """Whether a token's position depends on the length of its sequence."""
        return self._positions is not None and self._positions.scheme != "tile"

    def __call__(self, ids: Tensor, bounds: Sequence[int], tap: Tap | None = None) -> Tensor:
        """States [T, W] of ids [T]. Each sequence is between two consecutive bounds."""
        short = self._short_text_path if tap is None and len(bounds) == 2 else None
        if short is not None and short.takes(ids):
            return short(ids)
        if tap is not None:
            return self._last_states(ids, bounds, tap)
        if self._short_batches is None:
            return self._in_parts(ids, bounds)
        halves, rest = self._short_batches.split(bounds)
        found = self._short_batches.lanes.map(partial(self._in_parts, ids), halves)
        return _joined([*found, *(self._in_parts(ids, own) for own in rest)])

    def _in_parts(self, ids: Tensor, bounds: Sequence[int]) -> Tensor:
        parts = self._parts(bounds)
        return _joined([self._last_states(ids[part[0] : part[-1]], part, None) for part in parts])

    def _parts(self, bounds: Sequence[int]) -> list[Sequence[int]]:
        """Neighbouring sequences that go through all layers together.

        In int8 a CPU takes few rows at a time: the bytes, sums and scales of many would leave its
        caches.
        """
        if self.weights.is_int8:
            return parts_of(bounds, CPU_TILE_ROWS)
        return [bounds]

    def _last_states(self, ids: Tensor, bounds: Sequence[int], tap: Tap | None) -> Tensor:
        start = bounds[0]
        own_bounds = [bound - start for bound in bounds]
        if tap is None and self._fills_rows():
            return self._last_of_filled(ids, own_bounds)
        return _last(self.walk(ids, own_bounds, tap))

    def _fills_rows(self) -> bool:
        """Whether products are oneDNN's, which have a kernel for each number of rows."""
        return self.weights.layers[0].qkv.weight.is_mkldnn and not torch.is_grad_enabled()

    def _last_of_filled(self, ids: Tensor, bounds: Sequence[int]) -> Tensor:
        """The last states, with one more sequence that fills the rows up to a common number."""
        num_rows = len(ids)
        filled = common_count(num_rows)
        if filled == num_rows:
            return _last(self.walk(ids, bounds))
        return _last(self.walk(F.pad(ids, (0, filled - num_rows)), [*bounds, filled]))[:num_rows]

    def walk(
        self,
        ids: Tensor,
        bounds: Sequence[int],
        tap: Tap | None = None,
        *,
        attention: Sequence[Attend] | None = None,
    ) -> Iterator[Tensor]:
        """Yields the states after each layer. `attention` replaces the encoder's own."""
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
        """The input of the first layer [T, W], for the same ids as `walk`."""
        return self._first_states(ids, bounds, positions_in_sequences(bounds, self.device))

    def _first_states(self, ids: Tensor, bounds: Sequence[int], positions: Tensor) -> Tensor:
        lengths = lengths_of_rows(bounds, self.device) if self.reads_lengths else 0
        return self.embed(ids, positions, lengths)

    def projected(
        self, layer: int, states: Tensor, bounds: Sequence[int]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """q, k, v [T, H, D] of a layer whose input is these states."""
        return self.layers[layer].project(states, positions_in_sequences(bounds, self.device))

    def embed(self, ids: Tensor, positions: Tensor, lengths: Tensor | int) -> Tensor:
        """The input of the first layer [T, W], for ids [T] at positions [T].

        `lengths` are those of the tokens' sequences, a number or [T]. They may be 0 unless
        `reads_lengths`.
        """
        x = F.embedding(ids, self.weights.words).to(self.weights.dtype)
        if self._positions is not None:
            x = x + self._positions(positions, lengths)
        x = layer_norm(x, self.weights.embedding_norm, self.weights.norm_eps)
        return x.to(self.weights.state_dtype)

    def _finish(self, attended: Tensor, x: Tensor, layer: Layer) -> Tensor:
        """Everything after attention, in tiles: it treats each token independently."""
        if x.device.type != "cpu" or x.shape[0] <= CPU_TILE_ROWS:
            return layer.finish(attended, x)
        tiles = zip(
            torch.split(attended, CPU_TILE_ROWS), torch.split(x, CPU_TILE_ROWS), strict=True
        )
        return torch.cat([layer.finish(*tile) for tile in tiles])


def _last(all_states: Iterator[Tensor]) -> Tensor:
    for states in all_states:
        last = states
    return last


def _joined(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def parts_of(bounds: Sequence[int], most_rows: int) -> list[Sequence[int]]:
    """Bounds cut into parts of this many rows, or of one sequence. Neighbours share their bound."""
    parts, first = [], 0
    for at in range(1, len(bounds)):
        if bounds[at] - bounds[first] > most_rows and at - first > 1:
            parts.append(bounds[first:at])
            first = at - 1
    return [*parts, bounds[first:]]


_MAX_SHORT_TEXT = 512
"""Tokens. In longer texts the time between two products does not matter."""


class ShortTextPath:
    """One short text through an encoder of BERT's arrangement, on a CPU.

    It runs the same operations on the same numbers as `Encoder.walk`, with everything looked up in
    advance. The weights that a query of 16 tokens reads evict everything else from the caches, so
    each Python function between two products runs as slowly as on its first call.
    """

    def __init__(
        self, weights: EncoderWeights, positions: Tensor, layers: ShortLayers, most: int
    ) -> None:
        self.most = most
        self._words, self._positions = weights.words, positions
        self._embedding_norm = norm_of(weights.embedding_norm, weights)
        self._state_dtype = weights.state_dtype
        self._layers = layers

    def takes(self, ids: Tensor) -> bool:
        num_tokens = len(ids)
        return (
            0 < num_tokens <= self.most
            and self._num_rows(num_tokens)
            in whole_counts(self._layers.unguarded, torch.get_num_threads())
            and not torch.is_grad_enabled()
            and not torch.is_autocast_enabled("cpu")
        )

    def __call__(self, ids: Tensor) -> Tensor:
        """States [T, W] of ids [T]."""
        num_tokens = len(ids)
        num_rows = self._num_rows(num_tokens)
        if num_rows > num_tokens:
            ids = F.pad(ids, (0, num_rows - num_tokens))
        # Word vectors may be narrower than the positions, whose dtype the sum has.
        x = F.embedding(ids, self._words) + self._positions[:num_rows]
        first = torch.layer_norm(x, *self._embedding_norm)
        return self._layers.run(first.to(self._state_dtype), num_tokens)[:num_tokens]

    def _num_rows(self, num_tokens: int) -> int:
        return min(common_count(num_tokens), len(self._positions))


def short_text_path(
    weights: EncoderWeights, attention: Sequence[LayerAttention]
) -> ShortTextPath | None:
    """The path for this encoder; None if it needs anything that `ShortTextPath` does not do."""
    positions = weights.positions
    layers = float_layers(weights) or int8_layers(weights)
    if positions is None or layers is None:
        return None
    most = min(_MAX_SHORT_TEXT, len(positions), *map(_most_of_one_block, attention))
    return ShortTextPath(weights, positions, layers, most)


def _most_of_one_block(attention: LayerAttention) -> int:
    """Up to how many tokens this attention is softmax over all of them."""
    match attention:
        case SoftmaxAttention():
            return _MAX_SHORT_TEXT
        case BlockDiagonalAttention() | LLNDiagAttention():
            return attention.parameters.block_size
        case _:
            return 0
