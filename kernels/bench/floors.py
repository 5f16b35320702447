"""The least time that an operation takes on a device, by each thing that limits it.

Bytes and products are held against rates that are measured on the device, exponentials against its
units for them at their highest clock. The largest floor counts: no call can be faster.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kernels.bench.clocks import max_clock_hz
from kernels.bench.measure import Clock, Shape

AIM = 0.85
"""The share of the largest floor that a kernel should reach."""

EXPONENTIALS_PER_CLOCK = 16
"""Exponentials that a processor computes, on all devices from sm_80 to sm_90."""

FLOAT_BYTES = 4

Floors = dict[str, float]
"""Seconds by what limits: bytes, products, exponentials."""


@dataclass(frozen=True)
class Ceiling:
    """The device's best."""

    bytes_per_s: float  # of a copy, read and written
    flops_per_s: float  # of a large product in the measured dtype
    exponentials_per_s: float | None = None  # None where that is not known


def measure_ceiling(clock: Clock, dtype: torch.dtype) -> Ceiling:
    on_gpu = clock.device.type == "cuda"
    size, side = (2**30, 8192) if on_gpu else (2**26, 512)
    source = torch.zeros(size, dtype=torch.int8, device=clock.device)
    target = torch.empty_like(source)
    copy_s = clock.seconds(lambda: target.copy_(source))
    a = torch.randn(side, side, dtype=dtype, device=clock.device)
    product_s = clock.seconds(lambda: a @ a)
    return Ceiling(2 * size / copy_s, 2 * side**3 / product_s, _exponentials_per_s(clock.device))


def _exponentials_per_s(device: torch.device) -> float | None:
    if device.type != "cuda":
        return None
    clock_hz = max_clock_hz(device)
    processors = torch.cuda.get_device_properties(device).multi_processor_count
    return None if clock_hz is None else EXPONENTIALS_PER_CLOCK * processors * clock_hz


@dataclass(frozen=True)
class Work:
    """The least that an operation does for a token and head."""

    tensors: float  # rows read and written
    columns: float = 0  # that its products multiply a row by
    exponentials: float = 0
    numbers: int = 0  # float32 besides, as of a mix by token


def forward_work(shape: Shape, *, maps: bool = False) -> Work:
    """LLN+Diag: k, v; q, k, v, out. The state and its reading, and two products with the block."""
    width, block = shape.head_dim, shape.keys
    columns = 2 * width + 2 * block + (2 * width if maps else 0)
    return Work(6, columns, exponentials=2 * width + block)


def both_work(shape: Shape, *, maps: bool = False, gate: bool = False) -> Work:
    """Forward and backward, which weighs every key and channel again.

    The backward reads q, g; q, k, v, g and writes dq, dk, dv. Of the block it needs its scores, the
    gradient of their weights and three products with them; of LLN four with the state and its
    gradient; of a map one for its rows' gradient and one for its own, beside the mapping. A gate's
    mixes by token are written once and read by both passes.
    """
    width, block = shape.head_dim, shape.keys
    columns = 6 * width + 7 * block + (8 * width if maps else 0)
    return Work(15, columns, exponentials=5 * width + 2 * block, numbers=3 * int(gate))


def diag_work(shape: Shape) -> Work:
    """Softmax over the own block alone: q, k, v, out."""
    return Work(4, 2 * shape.keys, exponentials=shape.keys)


def floors(shape: Shape, work: Work, dtype: torch.dtype, ceiling: Ceiling) -> Floors:
    rows = shape.tokens * shape.num_heads
    moved = shape.bytes_of(work.tensors, dtype) + rows * work.numbers * FLOAT_BYTES
    found = {
        "bytes": moved / ceiling.bytes_per_s,
        "products": shape.product_flops(work.columns) / ceiling.flops_per_s,
    }
    if ceiling.exponentials_per_s is not None:
        found["exponentials"] = rows * work.exponentials / ceiling.exponentials_per_s
    return found
