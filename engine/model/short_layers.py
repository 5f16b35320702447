"""All layers of an encoder of BERT's arrangement for one short text, with all arguments at hand.

The same operations as in layers.py and linear.py, without their choices: a text of 16 tokens spends
as long between two products as in them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from engine.model.int8 import QUANTISE, Int8Affine
from engine.model.linear import FUSED, activation_in_place, fused_activation, product_kinds
from engine.model.weights import Affine, EncoderWeights, LayerWeights, Linear
from engine.platform.byte_products import BYTE_PRODUCT
from engine.platform.float_products import ADDED, PRODUCT, ProductKind, steady_product
from kernels.attention.block_softmax import attend_heads


class ShortLayers(NamedTuple):
    run: Callable[[Tensor, int], Tensor]
    """The last layer's states [T, W] of one text, from the first layer's input [T, W] and the
    number of the text's tokens. The rows after those fill up."""

    unguarded: tuple[ProductKind, ...] = ()
    """Products that are steady only at their `whole_counts`."""


def float_layers(weights: EncoderWeights) -> ShortLayers | None:
    """The layers in float32 or bfloat16; None if they are of another kind."""
    if weights.activation not in FUSED:
        return None
    for dtype, (run, arguments) in _OF_DTYPE.items():
        if weights.state_dtype is dtype and _all_are(weights, partial(_is_packed, dtype=dtype)):
            fused = fused_activation(weights.activation, dtype)
            layers = [arguments(layer, weights, fused or FUSED[None]) for layer in weights.layers]
            run = partial(run, layers, weights.num_heads, weights.head_dim)
            if dtype is not torch.float32:
                return ShortLayers(run)
            later = None if fused else activation_in_place(weights.activation)
            return ShortLayers(partial(run, later=later), product_kinds(weights))
    return None


def int8_layers(weights: EncoderWeights) -> ShortLayers | None:
    """None if the layers are of another kind."""
    if not _all_are(weights, _is_int8):
        return None
    layers = [_int8_arguments(layer, weights) for layer in weights.layers]
    activated = activation_in_place(weights.activation)
    heads, dim = weights.num_heads, weights.head_dim
    return ShortLayers(partial(_run_int8, layers, heads, dim, weights.attention_dtype, activated))


def _run_float32(
    layers: list[Any],
    heads: int,
    dim: int,
    x: Tensor,
    count: int,
    *,
    later: Callable[[Tensor], Tensor] | None,
) -> Tensor:
    """`later` is the activation, if it is not fused."""
    linear, linear_added = PRODUCT.default, PRODUCT.binary
    norm, attend = torch.layer_norm, F.scaled_dot_product_attention
    for qkv, out, out_norm, ffn_in, ffn_out, ffn_norm in layers:
        attended = _attended(linear(x, *qkv), count, heads, dim, attend)
        x = norm(linear_added(attended, x, *out), *out_norm)
        hidden = linear(x, *ffn_in)
        x = norm(linear_added(later(hidden) if later else hidden, x, *ffn_out), *ffn_norm)
    return x


def _run_bfloat16(layers: list[Any], heads: int, dim: int, x: Tensor, count: int) -> Tensor:
    """States are bfloat16 too."""
    product: Callable[..., Tensor] = steady_product
    norm = torch.layer_norm
    for qkv, out, out_norm, ffn_in, ffn_out, ffn_norm in layers:
        attended = _attended(product(x, *qkv), count, heads, dim, attend_heads)
        x = norm(product(attended, *out, x), *out_norm)
        x = norm(product(product(x, *ffn_in), *ffn_out, x), *ffn_norm)
    return x


def _run_int8(
    layers: list[Any],
    heads: int,
    dim: int,
    dtype: torch.dtype,
    activated: Callable[[Tensor], Tensor],
    x: Tensor,
    count: int,
) -> Tensor:
    norm = torch.layer_norm
    for qkv, out, out_norm, ffn_in, ffn_out, ffn_norm in layers:
        projected = _multiplied(x, qkv).to(dtype)
        attended = _attended(projected, count, heads, dim, attend_heads).float()
        # NaN is lost among the bytes; here nothing else would carry it on.
        carried = attended.sum(1, keepdim=True)
        y = _multiplied(attended, out).add_(x)
        x = norm(torch.add(y, carried, alpha=0, out=y), *out_norm)
        hidden = activated(_multiplied(x, ffn_in))
        x = norm(_multiplied(hidden, ffn_out).add_(x), *ffn_norm)
    return x


def _attended(
    projected: Tensor, count: int, heads: int, dim: int, attend: Callable[..., Tensor]
) -> Tensor:
    """Attention's output [T, W] among the first `count` rows of q, k and v [T, 3 W]."""
    num_rows = len(projected)
    split = projected.view(1, num_rows, 3, heads, dim).permute(2, 0, 3, 1, 4)
    if num_rows > count:
        split = split.narrow(3, 0, count)
    joined = attend(*split.unbind(0)).transpose(1, 2).reshape(count, heads * dim)
    return joined if num_rows == count else F.pad(joined, (0, 0, 0, num_rows - count))


class _Int8Arguments(NamedTuple):
    smoothing: Tensor | None
    product: tuple[Any, ...]  # what follows the rows in `byte_product`
    bias: Tensor
    sums: Tensor


def _multiplied(x: Tensor, layer: _Int8Arguments) -> Tensor:
    """`int8.multiplied` that hides NaN."""
    smoothing, product, bias, sums = layer
    if smoothing is not None:
        x = x * smoothing
    rows = QUANTISE(x)
    tails = rows.view(torch.float32)
    y: Tensor = BYTE_PRODUCT(rows, *product)
    torch.addcmul(bias, y, tails.narrow(1, -2, 1), out=y)
    return y.addcmul_(tails.narrow(1, -1, 1), sums)


def _all_are(weights: EncoderWeights, is_such: Callable[[Linear], bool]) -> bool:
    if weights.arrangement != "post_norm":
        return False
    return all(
        layer.attention_norm is not None
        and layer.half_window is None
        and all(map(is_such, (layer.qkv, layer.attention_out, layer.ffn_in, layer.ffn_out)))
        for layer in weights.layers
    )


def _is_packed(layer: Linear, dtype: torch.dtype) -> bool:
    # `pack` decides about oneDNN's layout.
    return isinstance(layer, Affine) and layer.weight.is_mkldnn and layer.weight.dtype is dtype


def _is_int8(layer: Linear) -> bool:
    """Floats after the bytes of rows begin at multiples of 4 bytes."""
    return (
        isinstance(layer, Int8Affine)
        and layer.bias is not None
        and layer.num_weights // len(layer.scale) % 4 == 0
    )


def _float32_arguments(
    layer: LayerWeights, weights: EncoderWeights, activation: tuple[Any, ...]
) -> tuple[tuple[Any, ...], ...]:
    assert layer.attention_norm is not None, "post-norm layers have one"
    return (
        (*layer.qkv, *FUSED[None]),
        (*layer.attention_out, *ADDED),
        norm_of(layer.attention_norm, weights),
        (*layer.ffn_in, *activation),
        (*layer.ffn_out, *ADDED),
        norm_of(layer.ffn_norm, weights),
    )


def _bfloat16_arguments(
    layer: LayerWeights, weights: EncoderWeights, activation: tuple[Any, ...]
) -> tuple[tuple[Any, ...], ...]:
    assert layer.attention_norm is not None, "post-norm layers have one"
    return (
        _bfloat16_product(layer.qkv, FUSED[None]),
        _bfloat16_product(layer.attention_out, ADDED),
        norm_of(layer.attention_norm, weights),
        _bfloat16_product(layer.ffn_in, activation),
        _bfloat16_product(layer.ffn_out, ADDED),
        norm_of(layer.ffn_norm, weights),
    )


def _bfloat16_product(layer: Linear, fused: tuple[Any, ...]) -> tuple[Any, ...]:
    return layer.weight, layer.bias, ProductKind.of(layer.weight, layer.bias, fused)


_OF_DTYPE: Mapping[torch.dtype, tuple[Callable[..., Tensor], Callable[..., tuple[Any, ...]]]] = {
    torch.float32: (_run_float32, _float32_arguments),
    torch.bfloat16: (_run_bfloat16, _bfloat16_arguments),
}
"""What runs the layers, and what makes its arguments of one layer."""


def _int8_arguments(layer: LayerWeights, weights: EncoderWeights) -> tuple[tuple[Any, ...], ...]:
    assert layer.attention_norm is not None, "post-norm layers have one"
    return (
        _int8_product(layer.qkv),
        _int8_product(layer.attention_out),
        norm_of(layer.attention_norm, weights),
        _int8_product(layer.ffn_in),
        _int8_product(layer.ffn_out),
        norm_of(layer.ffn_norm, weights),
    )


def _int8_product(layer: Linear) -> _Int8Arguments:
    assert isinstance(layer, Int8Affine), "it is quantised"
    assert layer.bias is not None, "layers without a bias take the long way"
    return _Int8Arguments(layer.smoothing, layer.product_arguments, layer.bias, layer.sums)


def norm_of(norm: Affine, weights: EncoderWeights) -> tuple[Any, ...]:
    return (weights.width,), norm.weight, norm.bias, weights.norm_eps
