"""Which units for 16-bit numbers this CPU has, and float32 in their place where it has none."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cache

import torch
from torch import Tensor

Units = Mapping[str, tuple[str, ...]]
"""Instructions, and parts of the limits under which oneDNN uses them."""

_LIMITS = ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA")
"""Variables that keep oneDNN from using newer instructions."""

NARROW = (torch.bfloat16, torch.float16)

BFLOAT16_TILES: Units = {"amx_bf16": ("AMX", "DEFAULT")}


def has_any(units: Units) -> bool:
    """Whether this CPU has one of these instructions, and oneDNN may use it."""
    if not hasattr(torch.cpu, "get_capabilities"):  # an older torch
        return False
    has = torch.cpu.get_capabilities()
    limits = [limit.upper() for name in _LIMITS if (limit := os.environ.get(name))]
    return any(
        has.get(instruction) and all(any(one in limit for one in allowing) for limit in limits)
        for instruction, allowing in units.items()
    )


@cache
def multiplies_bfloat16_tiles() -> bool:
    """Whether this CPU multiplies small matrices of bfloat16 much faster than of float32."""
    return has_any(BFLOAT16_TILES)


def widen(x: Tensor) -> Tensor:
    """Float32 in place of 16 bits."""
    return x.float() if x.dtype in NARROW else x


def wide(dtype: torch.dtype) -> torch.dtype:
    """What `widen` makes of rows of this dtype."""
    return torch.float32 if dtype in NARROW else dtype
