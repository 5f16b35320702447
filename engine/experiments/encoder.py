"""The small encoder that every attention kind is trained in: the same parameters for all kinds."""

from __future__ import annotations

from dataclasses import dataclass

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
    reads_neighbour: bool = False
    """Whether a token also sees the token before it, through a linear map, below all layers."""
    pools: bool = False
    """Whether there is one class a sequence, read from the mean of its tokens."""


class SmallEncoder(nn.Module):
    """Pre-norm layers with learned positions; a class for every token or for the sequence.

    The attention is an argument without parameters, so kinds differ in nothing else.
    """

    def __init__(self, shape: EncoderShape, attention: Baseline) -> None:
        super().__init__()
        self.shape = shape
        self.tokens = nn.Embedding(shape.vocabulary, shape.width)
        self.positions = nn.Embedding(shape.length, shape.width)
        self.neighbour = (
            nn.Linear(shape.width, shape.width, bias=False) if shape.reads_neighbour else None
        )
        self.layers = nn.ModuleList(_Layer(shape, attention) for _ in range(shape.layers))
        self.norm = nn.LayerNorm(shape.width)
        self.head = nn.Linear(shape.width, shape.classes)
        nn.init.normal_(self.tokens.weight, std=_TOKEN_STD)
        nn.init.normal_(self.positions.weight, std=_POSITION_STD)

    def forward(self, tokens: Tensor) -> Tensor:
        """The logits [B, N, classes] of tokens [B, N]; [B, 1, classes] if the model pools."""
        states = self.states(tokens)
        if self.shape.pools:
            states = states.mean(1, keepdim=True)
        logits: Tensor = self.head(states)
        return logits

    def states(self, tokens: Tensor) -> Tensor:
        """What the head reads of every token: [B, N, width]."""
        batch, length = tokens.shape
        x = self.tokens(tokens)
        if self.neighbour is not None:
            x = x + self.neighbour(F.pad(x, (0, 0, 1, 0))[:, :-1])
        x = (x + self.positions.weight[:length]).flatten(0, 1)
        bounds = list(range(0, (batch + 1) * length, length))
        packed = PackedSequences.of(bounds, tokens.device)
        for layer in self.layers:
            x = layer(x, packed)
        states: Tensor = self.norm(x).view(batch, length, -1)
        return states


class _Layer(nn.Module):
    def __init__(self, shape: EncoderShape, attention: Baseline) -> None:
        super().__init__()
        width = shape.width
        self.heads, self.attention = shape.heads, attention
        self.before_attention = nn.LayerNorm(width)
        self.to_qkv = nn.Linear(width, 3 * width)
        self.from_heads = nn.Linear(width, width)
        self.before_mlp = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor, packed: PackedSequences) -> Tensor:
        q, k, v = self.to_qkv(self.before_attention(x)).view(len(x), 3, self.heads, -1).unbind(1)
        x = x + self.from_heads(self.attention(q, k, v, packed).flatten(1))
        out: Tensor = x + self.mlp(self.before_mlp(x))
        return out


def count_parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())
