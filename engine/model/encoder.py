"""The encoder over packed sequences: token ids in, one state per token out, no padding anywhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from engine.model.attention import LayerAttention
from engine.model.linear import linear
from engine.model.weights import Affine, EncoderWeights, LayerWeights

Tap = Callable[[int, Tensor, Tensor, Tensor], None]
"""Called with a layer's index and its q, k, v of shape [T, H, D]."""

CPU_TILE_ROWS = 1024
"""Tokens that pass through a layer's products together on a CPU, so that what lies between two
products stays in cache. A GPU takes all rows at once."""


class Encoder:
    """A post-norm transformer encoder with learned positions, tiled beyond their table."""

    def __init__(self, weights: EncoderWeights, attention: Sequence[LayerAttention]) -> None:
        assert len(attention) == len(weights.layers), "one attention a layer"
        self.weights = weights
        self.attention = tuple(attention)

    @property
    def device(self) -> torch.device:
        return self.weights.words.device

    def __call__(self, ids: Tensor, bounds: Sequence[int], tap: Tap | None = None) -> Tensor:
        """States [T, W] of ids [T], which hold the sequences between consecutive bounds."""
        for states in self.walk(ids, bounds, tap):
            last = states
        return last

    def walk(self, ids: Tensor, bounds: Sequence[int], tap: Tap | None = None) -> Iterator[Tensor]:
        """The same, layer by layer: the states after each."""
        cu_seqlens = torch.tensor(bounds, dtype=torch.int32)
        x = self.embed(ids, bounds)
        for index, (layer, attend) in enumerate(
            zip(self.weights.layers, self.attention, strict=True)
        ):
            q, k, v = self._project(x, layer)
            if tap is not None:
                tap(index, q, k, v)
            x = self._finish(attend(q, k, v, cu_seqlens).flatten(1), x, layer)
            yield x

    def embed(self, ids: Tensor, bounds: Sequence[int]) -> Tensor:
        """What the first layer reads: [T, W]."""
        words, table = self.weights.words, self.weights.positions
        positions = positions_in_sequences(bounds, self.device) % len(table)
        x = F.embedding(ids, words) + F.embedding(positions, table)
        return self._norm(x, self.weights.embedding_norm)

    def queries_and_keys(self, states: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        """q, k of what this layer reads: [T, H, D]."""
        q, k, _ = self._project(states, self.weights.layers[layer])
        return q, k

    def _project(self, x: Tensor, layer: LayerWeights) -> tuple[Tensor, Tensor, Tensor]:
        """q, k, v as [T, H, D] views of one product."""
        qkv = linear(x, layer.qkv).view(len(x), 3, self.weights.num_heads, self.weights.head_dim)
        q, k, v = qkv.unbind(1)
        return q, k, v

    def _finish(self, attended: Tensor, x: Tensor, layer: LayerWeights) -> Tensor:
        """Everything after attention, tile by tile: it looks at one token at a time."""
        if x.device.type != "cpu" or len(x) <= CPU_TILE_ROWS:
            return self._finish_tile(attended, x, layer)
        tiles = zip(
            torch.split(attended, CPU_TILE_ROWS), torch.split(x, CPU_TILE_ROWS), strict=True
        )
        return torch.cat([self._finish_tile(*tile, layer) for tile in tiles])

    def _finish_tile(self, attended: Tensor, x: Tensor, layer: LayerWeights) -> Tensor:
        x = self._norm(linear(attended, layer.attention_out) + x, layer.attention_norm)
        hidden = linear(x, layer.ffn_in, self.weights.activation)
        return self._norm(linear(hidden, layer.ffn_out) + x, layer.ffn_norm)

    def _norm(self, x: Tensor, norm: Affine) -> Tensor:
        return F.layer_norm(x, x.shape[-1:], norm.weight, norm.bias, self.weights.norm_eps)


def positions_in_sequences(bounds: Sequence[int], device: torch.device) -> Tensor:
    """Each packed row's index within its own sequence: [T]."""
    starts, ends = np.array(bounds[:-1]), np.array(bounds[1:])
    positions = np.arange(bounds[-1]) - np.repeat(starts, ends - starts)
    return torch.from_numpy(positions).to(device)
