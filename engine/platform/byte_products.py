"""oneDNN's products of bytes, and whether they are exact on this processor."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor

BYTE_PRODUCT = torch.ops.onednn.qlinear_pointwise.default

_TYPICAL_ROWS = 1024
_TRIED = ((1, 61, 17), (33, 392, 48))
"""Rows, inputs and outputs of the products that are tried."""


def packed(weight: Tensor) -> Tensor:
    """An int8 weight [out, in] in oneDNN's layout."""
    found: Tensor = torch.ops.onednn.qlinear_prepack(weight, [_TYPICAL_ROWS, weight.shape[1]])
    return found


def product_arguments(weight: Tensor, scale: Tensor, zero: Tensor) -> tuple[Any, ...]:
    """What follows the rows in a call of `BYTE_PRODUCT`: the rows have scale 1 and zero 0."""
    return (1.0, 0, weight, scale, zero, None, 1.0, 0, torch.float32, "none", [], "")


@cache
def adds_pairs() -> bool:
    """Whether products are exact as long as those of inputs 2k and 2k + 1 fit into 16 bits.

    Instructions before VNNI add two products in 16 bits, and cut off what does not fit. Which two
    is oneDNN's choice: here every other choice would be cut off.
    """
    return all(_is_exact(sign, *shape) for sign in (1, -1) for shape in _TRIED)


def _is_exact(sign: int, num_rows: int, num_in: int, num_out: int) -> bool:
    pairs = torch.tensor([127, 1, 1, 127], dtype=torch.int8) * sign
    weight = pairs.repeat(-(-num_in // 4))[:num_in].expand(num_out, -1).contiguous()
    rows = torch.full((num_rows, num_in), 255, dtype=torch.uint8)
    scale, zero = torch.ones(num_out), torch.zeros(num_out, dtype=torch.int64)
    found: Tensor = BYTE_PRODUCT(rows, *product_arguments(packed(weight), scale, zero))
    return torch.equal(found, rows.float() @ weight.float().T)
