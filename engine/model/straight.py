"""One short text straight through an encoder of BERT's arrangement, on a CPU in float32.

The same operations on the same numbers as layer by layer, with all that can be known beforehand
looked up beforehand. A query of 16 tokens takes its weights through every cache there is, so that
each Python function between two products runs as if for the first time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from engine.model.attention import (
    BlockDiagonalAttention,
    LayerAttention,
    LLNDiagAttention,
    SoftmaxAttention,
)
from engine.model.linear import FUSED, PRODUCT
from engine.model.weights import Affine, EncoderWeights, LayerWeights

MOST_TOKENS = 512
"""Beyond it nothing between two products is worth a thought."""


class Straight:
    """Takes texts of 2 to `most` tokens: a single row is multiplied in company (linear.py)."""

    def __init__(
        self, weights: EncoderWeights, positions: Tensor, activation: tuple[Any, ...], most: int
    ) -> None:
        self.most = most
        self._words, self._positions = weights.words, positions
        self._num_heads, self._head_dim = weights.num_heads, weights.head_dim
        self._embedding_norm = _norm_of(weights.embedding_norm, weights)
        self._layers = [_arguments_of(layer, weights, activation) for layer in weights.layers]

    def takes(self, ids: Tensor) -> bool:
        return 2 <= len(ids) <= self.most and not torch.is_grad_enabled()

    def __call__(self, ids: Tensor) -> Tensor:
        """States [T, W] of ids [T]."""
        count, heads, dim = len(ids), self._num_heads, self._head_dim
        linear, linear_added = PRODUCT.default, PRODUCT.binary
        norm, attend = torch.layer_norm, F.scaled_dot_product_attention
        x = F.embedding(ids, self._words) + self._positions[:count]
        x = norm(x, *self._embedding_norm)
        for qkv, out, out_norm, ffn_in, ffn_out, ffn_norm in self._layers:
            split = linear(x, *qkv).view(1, count, 3, heads, dim).permute(2, 0, 3, 1, 4)
            attended = attend(*split.unbind(0)).transpose(1, 2).reshape(count, heads * dim)
            x = norm(linear_added(attended, x, *out), *out_norm)
            x = norm(linear_added(linear(x, *ffn_in), x, *ffn_out), *ffn_norm)
        return x


def straight_pass(weights: EncoderWeights, attention: Sequence[LayerAttention]) -> Straight | None:
    """None where an encoder has anything that `Straight` does not do."""
    positions, activation = weights.positions, FUSED.get(weights.activation)
    if positions is None or activation is None or weights.arrangement != "post_norm":
        return None
    if not all(_is_plain(layer) for layer in weights.layers):
        return None
    most = min(MOST_TOKENS, len(positions), *map(_most_of_one_block, attention))
    return Straight(weights, positions, activation, most)


def _is_plain(layer: LayerWeights) -> bool:
    products = (layer.qkv, layer.attention_out, layer.ffn_in, layer.ffn_out)
    # oneDNN's own order, of which linear.py decides, for float32.
    packed = all(one.weight.is_mkldnn and one.weight.dtype is torch.float32 for one in products)
    return packed and layer.attention_norm is not None and layer.half_window is None


def _most_of_one_block(attention: LayerAttention) -> int:
    """Up to how many tokens it is softmax over all of them."""
    match attention:
        case SoftmaxAttention():
            return MOST_TOKENS
        case BlockDiagonalAttention() | LLNDiagAttention():
            return attention.parameters.block_size
        case _:
            return 0


def _arguments_of(
    layer: LayerWeights, weights: EncoderWeights, activation: tuple[Any, ...]
) -> tuple[tuple[Any, ...], ...]:
    assert layer.attention_norm is not None, "a layer of BERT's arrangement has it"
    return (
        (*layer.qkv, *FUSED[None]),
        (*layer.attention_out, "add"),
        _norm_of(layer.attention_norm, weights),
        (*layer.ffn_in, *activation),
        (*layer.ffn_out, "add"),
        _norm_of(layer.ffn_norm, weights),
    )


def _norm_of(norm: Affine, weights: EncoderWeights) -> tuple[Any, ...]:
    return (weights.width,), norm.weight, norm.bias, weights.norm_eps
