"""Heads in groups so small that what a first pass reads is still in the L2 cache for the second.

The forward reads keys and values twice, the backward queries and the output's gradient. Only the
order of work changes with the groups, never a result, so they may depend on the length.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from kernels.attention.triton_operands import Map

L2_SHARE = 1 / 3
"""Of the L2 cache, for the two tensors of a group of heads; the rest is for what streams by."""


def head_groups(rows: Tensor, programs_per_head: int) -> list[slice]:
    """Heads of rows [T, H, D], two tensors of which are read twice.

    A group must keep the first pass's programs on half of the device's processors, or what is saved
    in bytes is lost in time.
    """
    num_rows, num_heads, head_dim = rows.shape
    if not rows.is_cuda:
        return [slice(0, num_heads)]
    device = torch.cuda.get_device_properties(rows.device)
    bytes_per_head = 2 * num_rows * head_dim * rows.element_size()
    fitting = int(device.L2_cache_size * L2_SHARE) // max(bytes_per_head, 1)
    if fitting >= num_heads or 2 * fitting * programs_per_head < device.multi_processor_count:
        return [slice(0, num_heads)]
    return list(_even_parts(num_heads, -(-num_heads // fitting)))


def map_of_heads(affine: Map | None, heads: slice) -> Map | None:
    if affine is None:
        return None
    weight, bias = affine
    return None if weight is None else weight[heads], bias[heads]


def _even_parts(num_heads: int, num_groups: int) -> Iterator[slice]:
    size = -(-num_heads // num_groups)
    for first in range(0, num_heads, size):
        yield slice(first, min(first + size, num_heads))
