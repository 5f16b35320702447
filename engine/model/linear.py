"""Linear layers as fast as the device allows, an activation fused where it can be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from engine.model.activations import activate
from engine.model.weights import Activation, Affine

PRODUCT = torch.ops.mkldnn._linear_pointwise

FUSED: Mapping[Activation | None, tuple[str, Sequence[float], str]] = {
    "gelu": ("gelu", (), "none"),
    "gelu_tanh": ("gelu", (), "tanh"),
    "relu": ("relu", (), ""),
    None: ("none", (), ""),
}

_TYPICAL_ROWS = 1024
"""What packing is told to expect; measured, the order it picks serves every number of rows."""


def pack(layer: Affine) -> Affine:
    """The layer with its weight in the order the CPU's product reads it, where it has one.

    Otherwise every product reorders it anew: a third of a short text's time, 5 % of a full batch's.
    """
    if not _has_fused_kernel(layer.weight):
        return layer
    packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(layer.weight, _TYPICAL_ROWS)
    return layer._replace(weight=packed)


def linear(x: Tensor, layer: Affine, activation: Activation | None = None) -> Tensor:
    """activation(x W^T + b) in the type of the weight, x of shape [T, in]."""
    if not _runs_packed(x, layer) or activation not in FUSED:
        weight = dense_weight(layer)
        bias = None if layer.bias is None else layer.bias.to(weight.dtype)
        return activate(F.linear(x.to(weight.dtype), weight, bias), activation)
    if x.shape[0] == 1:
        # A single row alone would be added up in another order than among others.
        return linear(x.expand(2, -1), layer, activation)[:1]
    weight = layer.weight
    x = x if x.dtype is weight.dtype else x.to(weight.dtype)
    fused: Tensor = PRODUCT.default(x, weight, layer.bias, *FUSED[activation])
    return fused


def linear_added(x: Tensor, layer: Affine, to: Tensor) -> Tensor:
    """to + x W^T + b, in one go where they have one type."""
    if not _runs_packed(x, layer) or not x.dtype is to.dtype is layer.weight.dtype:
        return linear(x, layer) + to
    if x.shape[0] == 1:
        return linear_added(x.expand(2, -1), layer, to.expand(2, -1))[:1]
    fused: Tensor = PRODUCT.binary(x, to, layer.weight, layer.bias, "add")
    return fused


def dense_weight(layer: Affine) -> Tensor:
    """The weight [out, in], whatever order it is kept in."""
    return layer.weight.to_dense() if layer.weight.is_mkldnn else layer.weight


def _runs_packed(x: Tensor, layer: Affine) -> bool:
    """Whether oneDNN takes it: it knows no gradients, and nothing of no rows."""
    return layer.weight.is_mkldnn and x.shape[0] > 0 and not torch.is_grad_enabled()


def _has_fused_kernel(weight: Tensor) -> bool:
    """oneDNN's linear: faster than the default one on a CPU, but without gradients."""
    return (
        weight.device.type == "cpu"
        and weight.dtype in (torch.float32, torch.bfloat16)
        and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    )
