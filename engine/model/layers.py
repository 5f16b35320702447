"""The parts of an encoder layer around its attention.

- `PostNormLayer` and `PreNormLayer`: the two arrangements that encoders have.
- `linear` and `linear_added`: linear layers, with oneDNN's packed weights and fused activations on
  a CPU.
- `activate`: activations that give a row the same bits in every batch.
- `LearnedPositions` and `rotate`: positions, also beyond those that a model was trained on.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from engine.checkpoint.block_size import LongBlock
from engine.model.int8 import Int8Affine, dequantised, multiplied
from engine.model.weights import (
    Activation,
    Affine,
    Arrangement,
    EncoderWeights,
    LayerWeights,
    Linear,
    Rotary,
)
from engine.platform.float_products import (
    ADDED,
    ProductKind,
    packed,
    steady_counts,
    steady_product,
)
from engine.types import PositionScheme
from kernels.attention.shares import logistic


class Layer(Protocol):
    """One layer without its attention: what comes before it and what comes after it."""

    def project(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """q, k and v of shape [T, H, D] for states [T, W] at these positions [T]."""
        ...

    def finish(self, attended: Tensor, x: Tensor) -> Tensor:
        """The layer's output, from attention's output [T, W] and the layer's input."""
        ...


@dataclass(frozen=True)
class PostNormLayer:
    """BERT's arrangement: each part's output is added to its input, then normalised."""

    weights: LayerWeights
    encoder: EncoderWeights

    def project(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return _heads(linear(x, self.weights.qkv), self.encoder)

    def finish(self, attended: Tensor, x: Tensor) -> Tensor:
        weights, activation = self.weights, self.encoder.activation
        x = self._norm(linear_added(attended, weights.attention_out, x), weights.attention_norm)
        hidden = linear(x, weights.ffn_in, activation)
        x = linear_added(hidden, weights.ffn_out, x, hides_nan=True)
        return self._norm(x, weights.ffn_norm)

    def _norm(self, x: Tensor, norm: Affine | None) -> Tensor:
        return layer_norm(x, norm, self.encoder.norm_eps)


@dataclass(frozen=True)
class PreNormLayer:
    """ModernBERT's arrangement: each part reads normalised states.

    Positions are rotary, the feed-forward part is gated, and the last layer normalises its output.
    """

    weights: LayerWeights
    encoder: EncoderWeights

    def project(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = _heads(
            linear(self._norm(x, self.weights.attention_norm), self.weights.qkv), self.encoder
        )
        rotary = self.weights.rotary
        if rotary is None:
            return q, k, v
        return rotate(q, positions, rotary), rotate(k, positions, rotary), v

    def finish(self, attended: Tensor, x: Tensor) -> Tensor:
        weights = self.weights
        x = linear_added(attended, weights.attention_out, x)
        inner, gate = linear(self._norm(x, weights.ffn_norm), weights.ffn_in).chunk(2, dim=-1)
        x = linear_added(activate(inner, self.encoder.activation) * gate, weights.ffn_out, x)
        return self._norm(x, weights.closing_norm)

    def _norm(self, x: Tensor, norm: Affine | None) -> Tensor:
        return layer_norm(x, norm, self.encoder.norm_eps)


_LAYER_OF: Mapping[Arrangement, type[PostNormLayer] | type[PreNormLayer]] = {
    "post_norm": PostNormLayer,
    "pre_norm": PreNormLayer,
}


def layers_of(weights: EncoderWeights) -> tuple[Layer, ...]:
    layer = _LAYER_OF[weights.arrangement]
    return tuple(layer(of_layer, weights) for of_layer in weights.layers)


def layer_norm(x: Tensor, norm: Affine | None, eps: float) -> Tensor:
    """Normalised rows; without a norm the rows themselves."""
    return x if norm is None else torch.layer_norm(x, x.shape[-1:], norm.weight, norm.bias, eps)


def _heads(qkv: Tensor, encoder: EncoderWeights) -> tuple[Tensor, Tensor, Tensor]:
    """q, k and v as views of one product."""
    if encoder.is_int8:
        qkv = qkv.to(encoder.attention_dtype)
    q, k, v = qkv.view(qkv.shape[0], 3, encoder.num_heads, encoder.head_dim).unbind(1)
    return q, k, v


FUSED: Mapping[Activation | None, tuple[str, Sequence[float], str]] = {
    "gelu": ("gelu", (), "none"),
    "gelu_tanh": ("gelu", (), "tanh"),
    "relu": ("relu", (), ""),
    None: ("none", (), ""),
}


def pack(layer: Affine, dtype: torch.dtype) -> Linear:
    """The layer with its weight in oneDNN's layout, on a CPU that supports it.

    Otherwise every product reorders the weight: a third of a short text's time, 5 % of a full
    batch's.
    """
    if dtype is torch.int8:
        return layer  # `quantised_weights` does the rest, when all layers are read
    if not _has_fused_kernel(layer.weight):
        return layer
    return layer._replace(weight=packed(layer.weight))


def try_products(weights: EncoderWeights) -> None:
    """Finds the row counts of the layers' products, so that no request waits for it."""
    for kind in product_kinds(weights):
        steady_counts(kind, torch.get_num_threads())


def product_kinds(weights: EncoderWeights) -> tuple[ProductKind, ...]:
    """The kinds of the layers' products of floats in oneDNN's layout."""
    fused = weights.activation if weights.arrangement == "post_norm" else None
    return tuple(
        {
            kind
            for layer in weights.layers
            for part, kind in (
                (layer.qkv, product_kind(layer.qkv)),
                (layer.attention_out, added_kind(layer.attention_out, weights.state_dtype)),
                (layer.ffn_in, product_kind(layer.ffn_in, fused)),
                (layer.ffn_out, added_kind(layer.ffn_out, weights.state_dtype)),
            )
            if part.weight.is_mkldnn and not isinstance(part, Int8Affine)
        }
    )


def product_kind(layer: Linear, activation: Activation | None = None) -> ProductKind:
    """The kind of `linear`'s product. An activation that oneDNN does not have comes after it."""
    return ProductKind.of(layer.weight, layer.bias, FUSED.get(activation, FUSED[None]))


def added_kind(layer: Linear, states: torch.dtype) -> ProductKind:
    """The kind of `linear_added`'s product. oneDNN adds only states of its own dtype to it."""
    fused = ADDED if layer.weight.dtype is states else FUSED[None]
    return ProductKind.of(layer.weight, layer.bias, fused)


def linear(x: Tensor, layer: Linear, activation: Activation | None = None) -> Tensor:
    """activation(x W^T + b) in the dtype of the weight, for x of shape [T, in]."""
    if isinstance(layer, Int8Affine) and _runs_packed(x, layer):
        y = multiplied(x, layer, hides_nan=True)  # the layer adds the states x later
        return torch.ops.aten.gelu_(y) if activation == "gelu" else activate(y, activation)
    if isinstance(layer, Int8Affine) or not _runs_packed(x, layer):
        weight = dense_weight(layer)
        bias = None if layer.bias is None else layer.bias.to(weight.dtype)
        return activate(F.linear(x.to(weight.dtype), weight, bias), activation)
    y = steady_product(x, layer.weight, layer.bias, product_kind(layer, activation))
    return y if activation in FUSED else activate(y, activation)


def linear_added(x: Tensor, layer: Linear, to: Tensor, *, hides_nan: bool = False) -> Tensor:
    """to + x W^T + b, fused if all have one dtype. `hides_nan`: NaN in x is also in `to`."""
    if isinstance(layer, Int8Affine) and _runs_packed(x, layer):
        return multiplied(x, layer, hides_nan=hides_nan).add_(to)
    alike = x.dtype is to.dtype is layer.weight.dtype
    if not alike or not _runs_packed(x, layer):
        return linear(x, layer).to(to.dtype).add_(to)
    return steady_product(x, layer.weight, layer.bias, added_kind(layer, to.dtype), to)


def dense_weight(layer: Linear) -> Tensor:
    """The weight [out, in] in its ordinary layout."""
    if isinstance(layer, Int8Affine):
        return dequantised(layer)
    return layer.weight.to_dense() if layer.weight.is_mkldnn else layer.weight


def _runs_packed(x: Tensor, layer: Linear) -> bool:
    """Whether oneDNN's kernel applies: it supports neither gradients nor empty inputs."""
    return layer.weight.is_mkldnn and x.shape[0] > 0 and not torch.is_grad_enabled()


def _has_fused_kernel(weight: Tensor) -> bool:
    """Whether oneDNN has a fused linear kernel, which is faster on a CPU but has no gradients."""
    return (
        weight.device.type == "cpu"
        and weight.dtype in (torch.float32, torch.bfloat16)
        and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    )


_TANH_SCALE, _TANH_CUBIC = math.sqrt(2 / math.pi), 0.044715
"""Constants of the tanh approximation of GELU."""


def activate(x: Tensor, activation: Activation | None) -> Tensor:
    """Gives a row the same bits whatever rows are beside it.

    On a CPU, torch's kernels for the logistic function, SiLU and GELU round some numbers
    differently if a row is not contiguous, or if a thread's share ends within it. Then a text's
    vector would depend on its batch in the last bit. torch's tanh has no such problem, nor has its
    GELU of contiguous rows.
    """
    on_cpu = x.device.type == "cpu"
    match activation:
        case None:
            return x
        case "gelu":
            return F.gelu(x.contiguous())
        case "gelu_tanh" if on_cpu:
            return x * logistic(2 * _TANH_SCALE * (x + _TANH_CUBIC * x * x * x))
        case "gelu_tanh":
            return F.gelu(x, approximate="tanh")
        case "relu":
            return F.relu(x)
        case "silu":
            return x * logistic(x) if on_cpu else F.silu(x)


@dataclass(frozen=True)
class LearnedPositions:
    """A table of learned positions, extended to sequences longer than the table.

    A sequence that fits the table uses its rows. In a longer one, "tile" repeats the table,
    "interpolate" stretches it over the sequence, and "reset" restarts it in each block of the
    attention.
    """

    table: Tensor  # [P, W]
    scheme: PositionScheme = "tile"
    block_size: int = 0  # for "reset"
    long_block: LongBlock | None = None

    def __call__(self, positions: Tensor, lengths: Tensor | int) -> Tensor:
        """Rows [T, W] for positions [T] in sequences of these lengths, a number or [T]."""
        size = len(self.table)
        match self.scheme:
            case "tile":
                return F.embedding(positions % size, self.table)
            case "interpolate":
                return self._interpolated(positions, torch.as_tensor(lengths, device=self._device))
            case "reset":
                lengths = torch.as_tensor(lengths, device=self._device)
                inside = positions % self._block_of(lengths).clamp_max(size)
                return F.embedding(torch.where(lengths > size, inside, positions), self.table)

    def _block_of(self, lengths: Tensor) -> Tensor:
        """The block size of every token's sequence; see `block_of`."""
        usual = torch.full_like(lengths, self.block_size)
        long = self.long_block
        return usual if long is None else usual.where(lengths <= long.beyond, long.size)

    @property
    def _device(self) -> torch.device:
        return self.table.device

    def _interpolated(self, positions: Tensor, lengths: Tensor) -> Tensor:
        last_row = len(self.table) - 1
        # In float64: float32 cannot distinguish the tokens of a long document.
        stretch = torch.clamp(last_row / (lengths - 1).clamp_min(1).double(), max=1.0)
        place = positions.double() * stretch
        below = place.floor().long().clamp_max(last_row)
        above = (below + 1).clamp_max(last_row)
        share = (place - below).to(self.table.dtype).unsqueeze(-1)
        return torch.lerp(F.embedding(below, self.table), F.embedding(above, self.table), share)


def rotate(x: Tensor, positions: Tensor, rotary: Rotary) -> Tensor:
    """x [T, ..., D] with each pair of channels (c, c + D/2) rotated by its token's position."""
    half = x.shape[-1] // 2
    channels = torch.arange(half, device=x.device, dtype=torch.float32)
    angles = positions[:, None].float() * rotary.base ** (-channels / half)
    shape = (len(x), *(1 for _ in x.shape[1:-1]), half)
    cos, sin = angles.cos().view(shape), angles.sin().view(shape)
    first, second = x[..., :half].float(), x[..., half:].float()
    rotated = torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)
    return rotated.to(x.dtype)


def positions_in_sequences(bounds: Sequence[int], device: torch.device) -> Tensor:
    """Each packed row's index in its sequence: [T]."""
    if len(bounds) == 2:
        return torch.arange(bounds[1], device=device)
    starts, ends = np.array(bounds[:-1]), np.array(bounds[1:])
    positions = np.arange(bounds[-1]) - np.repeat(starts, ends - starts)
    return torch.from_numpy(positions).to(device)


def lengths_of_rows(bounds: Sequence[int], device: torch.device) -> Tensor:
    """The length of each packed row's sequence: [T]."""
    lengths = np.diff(np.array(bounds))
    return torch.from_numpy(np.repeat(lengths, lengths)).to(device)
