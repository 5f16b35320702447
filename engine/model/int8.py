"""Linear layers in int8: weights by output channel, activations by token, sums in 32 bits.

A row is quantised by itself and integers add up exactly, so a text's vector does not depend on its
batch. A row's bytes reach from its least value to its largest. FBGEMM's kernel for tables of
embeddings finds and writes them in one pass; the products are oneDNN's.

CPUs without VNNI add the products of inputs 2k and 2k + 1 in 16 bits. In reduced range the steps of
a row of the weight are so large that no two of these can overflow: 255 (|a| + |b|) < 2^15 for any a
and b of one sign. Weights of different signs take from each other and may be as large as ever.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from engine.errors import CheckpointError
from engine.platform.byte_products import BYTE_PRODUCT, packed, product_arguments

MOST = 127
"""The largest quantised weight, and in reduced range the largest sum of two before they are
rounded. -128 has no counterpart and is not used."""

MOST_LOST = 0.25
"""The largest share of a tensor's weights that may be rounded to 0. MiniLM's tensors lose 1 %."""

SMOOTHING = 0.6
"""How much of the inputs' outliers the weights take over, from 0 to 1. Measured."""

_LEAST_SHARE = 1e-3
"""The share of the mean below which channels are smoothed no further."""

_TAIL = 8
"""Bytes after each quantised row: two float32, what a step stands for and the row's least value."""
_TINY = torch.finfo(torch.float32).tiny


QUANTISE = torch.ops.quantized.embedding_bag_byte_prepack.default


class Int8Affine(NamedTuple):
    """A linear layer whose weight is quantised and packed."""

    weight: Tensor  # [in + _TAIL, out] in oneDNN's layout; what multiplies the tail is 0
    bias: Tensor | None  # [out]
    scale: Tensor  # [out]
    zero: Tensor  # [out] integers, all 0: weights are symmetric
    sums: Tensor  # [out], of the dequantised weight over its inputs
    smoothing: Tensor | None = None  # [in], what inputs are multiplied by before they are quantised
    reduced: bool = False  # whether neighbours' products fit into 16 bits

    @property
    def num_weights(self) -> int:
        return (self.weight.shape[0] - _TAIL) * self.weight.shape[1]

    @property
    def product_arguments(self) -> tuple[Any, ...]:
        """What follows the rows in a call of `BYTE_PRODUCT`."""
        return product_arguments(self.weight, self.scale, self.zero)


def quantised(
    weight: Tensor, bias: Tensor | None, smoothing: Tensor | None = None, *, reduced: bool = False
) -> Int8Affine:
    """The layer with its weight [out, in] in int8, one scale for each output channel."""
    if smoothing is not None:
        weight = weight / smoothing
    scales = _scales(_neighbours(weight) if reduced else weight.abs())
    steps = weight.div(scales).round_()
    scale = scales.flatten()
    zero = torch.zeros(len(scale), dtype=torch.int64)
    sums = steps.sum(1) * scale  # of whole numbers far below 2^24, so exact
    rounded = F.pad(steps.to(torch.int8), (0, _TAIL))
    return Int8Affine(packed(rounded), bias, scale, zero, sums, smoothing, reduced)


def _scales(sizes: Tensor) -> Tensor:
    """What a step of each row's bytes stands for [out, 1]."""
    return sizes.amax(1, keepdim=True).clamp_min(_TINY * MOST) / MOST


def _neighbours(weight: Tensor) -> Tensor:
    """The size of what inputs 2k and 2k + 1 can add up to, of either sign [out, in / 2 or more]."""
    pairs = F.pad(weight, (0, weight.shape[1] % 2)).reshape(len(weight), -1, 2)
    one, other = pairs.unbind(2)
    above = one.clamp_min(0) + other.clamp_min(0)
    below = one.clamp_max(0) + other.clamp_max(0)
    return torch.maximum(above, -below)


def dequantised(layer: Int8Affine) -> Tensor:
    """The weight [out, in] as numbers."""
    weight = layer.weight.to_dense()[:-_TAIL].t() * layer.scale[:, None]
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


def multiplied(x: Tensor, layer: Int8Affine, *, hides_nan: bool = False) -> Tensor:
    """x W^T + b for rows x [T, in], T > 0.

    A row that holds NaN gives NaN, unless `hides_nan`: then it may give any numbers, which saves
    1 % where the row's NaN goes on beside the product.
    """
    x = x.float()
    if layer.smoothing is not None:
        x = x * layer.smoothing
    rows, step, least = quantised_rows(x)
    if not hides_nan:
        # The kernel's search for the least value passes over NaN. A sum does not.
        least = torch.add(least, x.sum(1, keepdim=True), alpha=0)
    y = byte_product(rows, layer)
    y = y.mul_(step) if layer.bias is None else torch.addcmul(layer.bias, y, step, out=y)
    return y.addcmul_(least, layer.sums)


class QuantisedRows(NamedTuple):
    rows: Tensor  # [T, W + _TAIL] bytes
    step: Tensor  # [T, 1] what a step of the row's bytes stands for
    least: Tensor  # [T, 1] what byte 0 stands for


def quantised_rows(x: Tensor) -> QuantisedRows:
    """x [T, W] as bytes, with one range for each row."""
    rows = QUANTISE(x)
    tails = rows[:, -_TAIL:]
    if rows.shape[1] % 4:  # floats begin at multiples of 4 bytes
        tails = tails.contiguous()
    return QuantisedRows(rows, *tails.view(torch.float32).split(1, dim=1))


def byte_product(rows: Tensor, layer: Int8Affine) -> Tensor:
    """The rows' bytes times W^T, with the scales of the weight but not of the rows."""
    y: Tensor = BYTE_PRODUCT(rows, *layer.product_arguments)
    return y
