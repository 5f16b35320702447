"""What a call costs the host: the time until all its kernels are on their way to the device.

With a GPU that is measured as it is. Without one everything runs but the last step: tensors are the
CPU's, kernels are compiled for an H100, and Triton's launcher is replaced by one that does nothing.
So these count: checks of arguments, tables and tiles, buffers, the arguments of every launch, and
Triton's binding of them and its search for the compiled kernel. These do not: Triton's last step,
which packs the arguments in C, CUDA's launch, and what CUDA's allocator takes beyond the CPU's.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from importlib.util import find_spec
from itertools import accumulate
from time import thread_time
from typing import Any

import torch
from torch import Tensor

from kernels.attention import (
    Gate,
    PackedSequences,
    arguments,
    block_diagonal_attention,
    custom_op,
    lln_diag_attention,
    softmax_attention,
)
from kernels.bench.measure import Run, Shape, Times
from kernels.bench.report import Row
from kernels.bench.runs import Bench

ALLOWED_S = 40e-6
"""The most time that the host may take for a fused call."""
CALLS = 300
NUM_HEADS = 1
"""So that a CPU's buffers are small and come from its heap. Calls do the same for any number."""
MANY = 4096
"""Sequences of a batch that is checked."""


@dataclass(frozen=True)
class Call:
    name: str
    shape: Shape
    run: Run
    allowed_s: float | None = None


def host(bench: Bench) -> Iterator[Row]:
    """The host's time for a call, and for the bounds of a batch."""
    if find_spec("triton") is None:
        return
    on_gpu = bench.device.type == "cuda"
    for call in calls(bench.device, torch.bfloat16):
        # Left before the caller goes on.
        with nullcontext() if on_gpu else no_driver(), torch.inference_mode():
            row = _measured(bench, call)
        yield row


def _measured(bench: Bench, call: Call) -> Row:
    """A failure is in the row, as in other suites."""
    row = bench.row("host", call.name, call.shape, call.run)
    if row.seconds is None:
        return row
    times = host_seconds(call.run)
    found, fastest = Times.of(times), min(times)
    seconds = found.median
    row = replace(row, seconds=seconds, p20_seconds=found.p20, p80_seconds=found.p80)
    row = replace(row, note=f"fastest {fastest * 1e6:.0f} us")
    if call.allowed_s is None:
        return row
    target = f"<= {call.allowed_s * 1e6:g} us"
    return replace(row, target=target, met=seconds <= call.allowed_s)


def host_seconds(run: Run, calls: int = CALLS) -> list[float]:
    """This thread's processor time of every single call."""
    run()
    return [_once(run) for _ in range(calls)]


def _once(run: Run) -> float:
    if torch.cuda.is_available():
        torch.cuda.synchronize()  # the queue is empty, so that no launch waits for room in it
    started_at = thread_time()
    run()
    return thread_time() - started_at


def calls(device: torch.device, dtype: torch.dtype) -> Iterator[Call]:
    mixed, short = (1200, 500, 200, 100), tuple(range(30, 94, 2))
    for name, lengths, head_dim, block_size, served in (
        ("lln_diag_attention, mixed texts", mixed, 32, 64, False),
        ("lln_diag_attention, mixed texts, maps, sinks, gate", mixed, 32, 512, True),
        ("lln_diag_attention, short texts", short, 32, 64, False),
        ("lln_diag_attention, one text", (2000,), 32, 64, False),
    ):
        shape = Shape(sum(lengths), NUM_HEADS, head_dim, block_size, lengths)
        run = attend(shape, device, dtype, served=served)
        yield Call(name, shape, run, ALLOWED_S)
    shape = Shape(sum(short), NUM_HEADS, 32, 512, short)
    q, k, v = rows_of(shape, device, dtype)
    settings: dict[str, Any] = {"block_size": 512, "num_sinks": (1, 1)}
    packed = packed_of(shape, device)

    def diag() -> object:
        return block_diagonal_attention(q, k, v, cu_seqlens=packed, **settings)

    yield Call("block_diagonal_attention, short texts", shape, diag, ALLOWED_S)

    def softmax() -> object:
        return softmax_attention(q, k, v, cu_seqlens=packed)

    yield Call("softmax_attention, short texts", shape, softmax, ALLOWED_S)
    bounds = tuple(range(0, 64 * MANY + 1, 64))
    shape = Shape(bounds[-1], NUM_HEADS, 32, lengths=(64,) * MANY)
    made = PackedSequences.of(bounds, device)
    yield Call(f"bounds of {MANY:,} texts, once a batch", shape, bounds_run(bounds, device))
    yield Call(f"longest of {MANY:,} texts, once a call", shape, lambda: made.longest)


def bounds_run(bounds: tuple[int, ...], device: torch.device) -> Run:
    """All that a batch keeps for its layers."""
    return lambda: PackedSequences.of(bounds, device).longest


def attend(
    shape: Shape, device: torch.device, dtype: torch.dtype, *, served: bool
) -> Callable[[], Tensor]:
    """A call as a layer makes it; `served` with maps, sinks and a gate, as the models that ship."""
    q, k, v = rows_of(shape, device, dtype)
    num_heads, width = shape.num_heads, shape.head_dim
    float32: dict[str, Any] = {"dtype": torch.float32, "device": device}
    alpha, beta = (torch.ones(num_heads, **float32) for _ in range(2))
    more: dict[str, Any] = {"block_size": shape.block_size, "mix": torch.ones(num_heads, **float32)}
    if served:
        maps = (
            torch.ones(num_heads, width, width, **float32),
            torch.ones(num_heads, width, **float32),
        )
        more |= {"num_sinks": (1, 1), "q_map": maps, "k_map": maps}
        more["mix"] = Gate(maps[1], more["mix"])
        more["mix_scale"] = torch.ones(len(shape.lengths), **float32)
    packed = packed_of(shape, device)
    return lambda: lln_diag_attention(q, k, v, alpha=alpha, beta=beta, cu_seqlens=packed, **more)


def rows_of(
    shape: Shape, device: torch.device, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """Slices of one projection, as in a layer."""
    size = shape.tokens, 3, shape.num_heads, shape.head_dim
    q, k, v = torch.empty(size, dtype=dtype, device=device).unbind(1)
    return q, k, v


def packed_of(shape: Shape, device: torch.device) -> PackedSequences:
    return PackedSequences.of([0, *accumulate(shape.lengths)], device)


@contextmanager
def no_driver(
    launched: Callable[..., object] = lambda *_: None,
    loaded: Callable[[bytes], object] = lambda _: None,
) -> Iterator[None]:
    """Launches end at `launched` and not at the driver, and a CPU's tensors count as an H100's.

    `loaded` gets the machine code of every kernel that is built or found in Triton's cache.
    """
    if os.environ.get("TRITON_INTERPRET") == "1":
        raise RuntimeError("TRITON_INTERPRET is set: interpreted kernels are not launched")
    # Here, since it imports Triton, without which the other suites work.
    from kernels.attention.gpu import tiles
    from kernels.attention.gpu.constants import forget_constants
    from kernels.bench.no_driver import launches_end_at

    replaced = custom_op.runs_in_triton, arguments.check_finite, tiles.family_of
    custom_op.runs_in_triton = _as_on_a_gpu
    arguments.check_finite = _unread
    tiles.family_of = _hopper  # type: ignore[assignment]
    forget_constants()
    try:
        with launches_end_at(launched, loaded):
            yield
    finally:
        custom_op.runs_in_triton, arguments.check_finite, tiles.family_of = replaced
        forget_constants()


def _as_on_a_gpu(rows: Tensor) -> bool:
    return rows.dtype != torch.float64


def _hopper(_: torch.device) -> str:
    return "hopper"


def _unread(name: str, value: Tensor) -> None:
    """A GPU's numbers are not read."""
