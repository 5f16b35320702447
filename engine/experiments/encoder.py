"""The small encoder that every attention kind is trained in: the same parameters for all kinds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from engine.model.baselines import Baseline
from kernels.attention import PackedSequences

_TOKEN_STD = 1.0
_POSITION_STD = 0.02  # small: a task of symbols must not first be told apart from places


@dataclass(frozen=True, kw_only=True)
class EncoderShape:
    layers: int
    width: int
    heads: int
    length: int  # of every sequence
    vocabulary: int
    classes: int
    patch: int = 0
    """How many numbers a token is, if it is not a symbol."""
    reads_neighbour: bool = False
    """Whether a token also sees the token before it, through a linear map, below all layers."""
    reads_next: bool = False
    """The same of the token after it."""
    pools: bool = False
    """Whether there is one class a sequence, read from the mean of its tokens."""
    starts_as_waves: bool = False
    """Whether the learned positions begin as sines and cosines, from which neighbours are found
    sooner than from random ones."""


class SmallEncoder(nn.Module):
    """Pre-norm layers with learned positions; a class for every token or for the sequence.

    The attention is an argument without parameters, so kinds differ in nothing else.
    """

    def __init__(self, shape: EncoderShape, attention: Baseline) -> None:
        super().__init__()
        self.shape = shape
        self.tokens = (
            nn.Linear(shape.patch, shape.width)
            if shape.patch
            else nn.Embedding(shape.vocabulary, shape.width)
        )
        self.positions = nn.Embedding(shape.length, shape.width)
        self.neighbour = _square(shape.width) if shape.reads_neighbour else None
        self.next = _square(shape.width) if shape.reads_next else None
        self.layers = nn.ModuleList(Layer(shape, attention) for _ in range(shape.layers))
        self.norm = nn.LayerNorm(shape.width)
        self.head = nn.Linear(shape.width, shape.classes)
        if not shape.patch:
            nn.init.normal_(self.tokens.weight, std=_TOKEN_STD)
        nn.init.normal_(self.positions.weight, std=_POSITION_STD)
        if shape.starts_as_waves:
            self.positions.weight.data = _TOKEN_STD * waves(shape.length, shape.width)

    def forward(self, tokens: Tensor) -> Tensor:
        """The logits [B, N, classes] of tokens [B, N] or patches [B, N, P]; [B, 1, classes] if it
        pools."""
        states = self.states(tokens)
        if self.shape.pools:
            states = states.mean(1, keepdim=True)
        logits: Tensor = self.head(states)
        return logits

    def states(self, tokens: Tensor) -> Tensor:
        """What the head reads of every token: [B, N, width]."""
        batch, length = tokens.shape[:2]
        x, packed = self._first(tokens)
        for layer in self.layers:
            x = layer(x, packed)
        states: Tensor = self.norm(x).view(batch, length, -1)
        return states

    def heads_of(self, tokens: Tensor) -> Iterator[tuple[Baseline, Tensor, Tensor]]:
        """Each layer's attention with its queries and keys [B N, H, D] of tokens [B, N]."""
        x, packed = self._first(tokens)
        for layer in self.each_layer():
            q, k, _ = layer.qkv(x)
            yield layer.attention, q, k
            x = layer(x, packed)

    def projections(self) -> list[nn.Linear]:
        """The weights of queries, keys and values of every layer."""
        return [layer.to_qkv for layer in self.each_layer()]

    def each_layer(self) -> Iterable[Layer]:
        return cast("Iterable[Layer]", self.layers)

    def set_gates(self, gates: Sequence[Tensor]) -> None:
        """Multiplies each layer's head outputs by these [H] from now on; a head of 0 is pruned."""
        for layer, of_heads in zip(self.each_layer(), gates, strict=True):
            layer.gates = of_heads

    def _first(self, tokens: Tensor) -> tuple[Tensor, PackedSequences]:
        batch, length = tokens.shape[:2]
        own = x = self.tokens(tokens)
        if self.neighbour is not None:
            x = x + self.neighbour(F.pad(own, (0, 0, 1, 0))[:, :-1])
        if self.next is not None:
            x = x + self.next(F.pad(own, (0, 0, 0, 1))[:, 1:])
        x = (x + self.positions.weight[:length]).flatten(0, 1)
        bounds = list(range(0, (batch + 1) * length, length))
        return x, PackedSequences.of(bounds, tokens.device)


def _square(width: int) -> nn.Linear:
    return nn.Linear(width, width, bias=False)


class Layer(nn.Module):
    def __init__(self, shape: EncoderShape, attention: Baseline) -> None:
        super().__init__()
        width = shape.width
        self.heads, self.attention = shape.heads, attention
        self.gates: Tensor | None = None
        self.before_attention = nn.LayerNorm(width)
        self.to_qkv = nn.Linear(width, 3 * width)
        self.from_heads = nn.Linear(width, width)
        self.before_mlp = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor, packed: PackedSequences) -> Tensor:
        q, k, v = self.qkv(x)
        heads = self.attention(q, k, v, packed)
        if self.gates is not None:
            heads = heads * self.gates[:, None]
        x = x + self.from_heads(heads.flatten(1))
        out: Tensor = x + self.mlp(self.before_mlp(x))
        return out

    def qkv(self, x: Tensor) -> tuple[Tensor, ...]:
        """Three times [T, H, D]."""
        rows: Tensor = self.to_qkv(self.before_attention(x))
        return rows.view(len(x), 3, self.heads, -1).unbind(1)


def waves(length: int, width: int) -> Tensor:
    """Sines and cosines of wave lengths from 2 pi to 2 pi times 10,000 (Vaswani et al., 2017)."""
    frequencies = 1e4 ** -(torch.arange(0, width, 2) / width)
    angles = torch.arange(length)[:, None] * frequencies
    return torch.cat([angles.sin(), angles.cos()], dim=1)


def count_parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())
