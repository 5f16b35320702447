"""Linear layers in int8: weights by output channel, activations by token, sums in 32 bits.

A row is quantised by itself and integers add up exactly, so a text's vector does not depend on its
batch. The products are oneDNN's, which takes unsigned activations: a row's zero is at 128, or at 0
if its values have a known least.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from engine.errors import CheckpointError

MOST = 127
"""The largest quantised weight. -128 has no counterpart and is not used."""

MOST_LOST = 0.25
"""The largest share of a tensor's weights that may be rounded to 0. MiniLM's tensors lose 1 %."""

SMOOTHING = 0.6
"""How much of the inputs' outliers the weights take over, from 0 to 1. Measured."""

_LEAST_SHARE = 1e-3
"""Of the mean: channels below it are smoothed no further."""

_TYPICAL_ROWS = 1024
_ZERO = 128
_TINY = torch.finfo(torch.float32).tiny
_LOW_BYTE = 1.5 * 2**23
"""Added to a small number, it leaves the number, rounded, in the low byte of the float's bits."""
_AROUND_ZERO = torch.tensor(_LOW_BYTE + _ZERO)


class Int8Affine(NamedTuple):
    """A linear layer whose weight is quantised and packed."""

    weight: Tensor  # [in, out] in oneDNN's layout
    bias: Tensor | None  # [out]
    scale: Tensor  # [out]
    zero: Tensor  # [out] integers, all 0: weights are symmetric
    sums: Tensor  # [out], of the dequantised weight over its inputs
    smoothing: Tensor | None = None  # [in], what inputs are multiplied by before they are quantised


def quantised(weight: Tensor, bias: Tensor | None, smoothing: Tensor | None = None) -> Int8Affine:
    """The layer with its weight [out, in] in int8, one scale for each output channel."""
    if smoothing is not None:
        weight = weight / smoothing
    scales = _scales(weight.abs())
    rounded = (weight / scales).round().to(torch.int8)
    packed = torch.ops.onednn.qlinear_prepack(rounded, [_TYPICAL_ROWS, weight.shape[1]])
    scale = scales.flatten()
    zero = torch.zeros(len(scale), dtype=torch.int64)
    return Int8Affine(packed, bias, scale, zero, rounded.sum(1) * scale, smoothing)


def _scales(sizes: Tensor) -> Tensor:
    """What a step of each row's bytes stands for [out, 1]."""
    return sizes.amax(1, keepdim=True).clamp_min(_TINY * MOST) / MOST


def dequantised(layer: Int8Affine) -> Tensor:
    """The weight [out, in] as numbers."""
    weight = layer.weight.to_dense().t() * layer.scale[:, None]
    return weight if layer.smoothing is None else weight * layer.smoothing


def smoothing_of(weight: Tensor, largest: Tensor) -> Tensor:
    """Multipliers of a layer's inputs [in] that share their outliers with its weight [out, in].

    As in SmoothQuant: a channel whose largest input is far above the others' would cost them their
    last bits.
    """
    inputs = largest.clamp_min(largest.mean() * _LEAST_SHARE + _TINY)
    weights = weight.abs().amax(0)
    weights = weights.clamp_min(weights.mean() * _LEAST_SHARE + _TINY)
    smoothing = weights ** (1 - SMOOTHING) / inputs**SMOOTHING
    return smoothing / smoothing.log().mean().exp()


def check_outliers(name: str, weight: Tensor) -> None:
    """Raises CheckpointError if outliers would leave most of the other weights at 0."""
    sizes = weight.abs().float()
    lost = (sizes > 0) & (sizes < _scales(sizes) / 2)
    share = int(lost.sum()) / max(int(sizes.count_nonzero()), 1)
    if share > MOST_LOST:
        raise CheckpointError(
            f"tensor {name} cannot be used in int8: outliers would round {share:.0%} of its "
            f"weights to 0, at most {MOST_LOST:.0%} is possible; use float32 or bfloat16",
            code="int8_outliers",
            param=name,
            limit=MOST_LOST,
            actual=share,
        )


def multiplied(x: Tensor, layer: Int8Affine, *, least: float | None = None) -> Tensor:
    """x W^T + b for rows x [T, in], T > 0. `least` bounds x from below, if that is known."""
    if layer.smoothing is not None:
        x = x * layer.smoothing
    if least is None:
        rows, scale = _quantised_around_zero(x)
        y = byte_product(rows, layer, zero=_ZERO)
    else:
        rows, scale, zero = _quantised_from(x, least)
        y = torch.addcmul(byte_product(rows, layer, zero=0), zero, layer.sums, value=-1)
    return y.mul_(scale) if layer.bias is None else torch.addcmul(layer.bias, y, scale, out=y)


def byte_product(rows: Tensor, layer: Int8Affine, *, zero: int) -> Tensor:
    """(rows - zero) W^T with the scales of the weight, but not of the rows."""
    y: Tensor = torch.ops.onednn.qlinear_pointwise.default(
        *(rows, 1.0, zero, layer.weight, layer.scale, layer.zero, None),
        *(1.0, 0, torch.float32, "none", [], ""),
    )
    return y


def _quantised_around_zero(x: Tensor) -> tuple[Tensor, Tensor]:
    """x [T, W] as bytes around 128, and the scale of each row [T, 1]."""
    scale = x.abs().amax(1, keepdim=True).mul_(1 / MOST).clamp_min_(_TINY)
    return _low_bytes(x, scale.reciprocal(), _AROUND_ZERO), scale


def _quantised_from(x: Tensor, least: float) -> tuple[Tensor, Tensor, Tensor]:
    """x [T, W] as bytes that use all 8 bits, the scale and the byte of 0 of each row [T, 1].

    The bytes reach from 0 to 255 with half a step to spare, since that of 0 is rounded.
    """
    scale = x.amax(1, keepdim=True).clamp_min_(_TINY * MOST).sub_(least).mul_(1 / 254)
    inverse = scale.reciprocal()
    zero = inverse.mul(-least).round_()
    return _low_bytes(x, inverse, zero + _LOW_BYTE), scale, zero


def _low_bytes(x: Tensor, inverse: Tensor, offset: Tensor) -> Tensor:
    """x / scale + offset, rounded, as bytes: two passes where torch's own functions take four."""
    return torch.addcmul(offset, x, inverse).view(torch.int32).to(torch.uint8)
