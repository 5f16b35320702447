"""Linear layers, with oneDNN's packed weights and fused activations on a CPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from engine.model.activations import activate
from engine.model.int8 import Int8Affine, dequantised, multiplied
from engine.model.weights import Activation, Affine, EncoderWeights, Linear
from engine.platform.float_products import (
    ADDED,
    ProductKind,
    fuses_gelu_slowly,
    packed,
    steady_counts,
    steady_product,
)

FUSED: Mapping[Activation | None, tuple[str, Sequence[float], str]] = {
    "gelu": ("gelu", (), "none"),
    "gelu_tanh": ("gelu", (), "tanh"),
    "relu": ("relu", (), ""),
    None: ("none", (), ""),
}


def fused_activation(
    activation: Activation | None, dtype: torch.dtype
) -> tuple[str, Sequence[float], str] | None:
    """The activation as oneDNN computes it with a product of this dtype; None if it comes after."""
    if activation == "gelu" and dtype is torch.float32 and fuses_gelu_slowly():
        return None
    return FUSED.get(activation)


def activation_in_place(activation: Activation | None) -> Callable[[Tensor], Tensor]:
    """`activate` for rows that nobody else reads, in place where it can be."""
    if activation == "gelu":
        in_place: Callable[[Tensor], Tensor] = torch.ops.aten.gelu_.default
        return in_place
    return partial(activate, activation=activation)


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
    """The kind of `linear`'s product. An activation that is not fused comes after it."""
    fused = fused_activation(activation, layer.weight.dtype) or FUSED[None]
    return ProductKind.of(layer.weight, layer.bias, fused)


def added_kind(layer: Linear, states: torch.dtype) -> ProductKind:
    """The kind of `linear_added`'s product. oneDNN adds only states of its own dtype to it."""
    fused = ADDED if layer.weight.dtype is states else FUSED[None]
    return ProductKind.of(layer.weight, layer.bias, fused)


def linear(x: Tensor, layer: Linear, activation: Activation | None = None) -> Tensor:
    """activation(x W^T + b) in the dtype of the weight, for x of shape [T, in]."""
    if isinstance(layer, Int8Affine) and _runs_packed(x, layer):
        y = multiplied(x, layer, hides_nan=True)  # the layer adds the states x later
        return activation_in_place(activation)(y)
    if isinstance(layer, Int8Affine) or not _runs_packed(x, layer):
        weight = dense_weight(layer)
        bias = None if layer.bias is None else layer.bias.to(weight.dtype)
        return activate(F.linear(x.to(weight.dtype), weight, bias), activation)
    kind = product_kind(layer, activation)
    y = steady_product(x, layer.weight, layer.bias, kind)
    return activation_in_place(activation)(y) if kind.fused == FUSED[None] else y


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
