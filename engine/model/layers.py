"""An encoder layer around its attention, in the two arrangements that encoders have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from engine.model.activations import activate
from engine.model.linear import linear, linear_added
from engine.model.positions import rotate
from engine.model.weights import Affine, Arrangement, EncoderWeights, LayerWeights


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
