"""Times calls on a device, and says what they could take at best.

`Clock` times a call, `measure_ceiling` what the device can copy and multiply. `Shape` and `Inputs`
are what is measured, and `floor_seconds` the least that it costs by that ceiling.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from statistics import median
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

Run = Callable[[], object]

FLUSH_BYTES = 256 * 2**20
"""More than any L2 cache, so that one call's data does not speed up the next."""


@dataclass(frozen=True)
class Clock:
    device: torch.device
    seconds_each: float = 0.3
    """About how long to repeat one measurement."""

    def seconds(self, run: Run) -> float:
        """The median of several calls, each with a cold cache on a GPU."""
        if self.device.type == "cuda":
            return self._on_gpu(run)
        run()
        first = self._once(run)
        return median([first, *(self._once(run) for _ in range(self._repeats(first) - 1))])

    def seconds_in_a_row(self, run: Run, calls: int = 100) -> float:
        """The mean of many calls in a row with a warm cache, so with the cost of launching."""
        if self.device.type != "cuda":
            return self.seconds(run)
        replay = _captured(run)
        replay()
        start, end = _event(), _event()
        start.record()
        for _ in range(calls):
            replay()
        end.record()
        torch.cuda.synchronize(self.device)
        return float(start.elapsed_time(end)) / 1e3 / calls

    def peak_bytes(self, run: Run) -> int:
        """What a call allocates at its peak; 0 where that is not known."""
        if self.device.type != "cuda":
            return 0
        run()
        torch.cuda.synchronize(self.device)
        torch.cuda.reset_peak_memory_stats(self.device)
        before = torch.cuda.memory_allocated(self.device)
        run()
        torch.cuda.synchronize(self.device)
        return torch.cuda.max_memory_allocated(self.device) - before

    def _on_gpu(self, run: Run) -> float:
        replay = _captured(run)
        flush = torch.empty(FLUSH_BYTES, dtype=torch.int8, device=self.device)
        first = self._times(replay, flush, 2)[-1]
        return median(self._times(replay, flush, self._repeats(first)))

    def _times(self, run: Run, flush: torch.Tensor, count: int) -> list[float]:
        events = [(_event(), _event()) for _ in range(count)]
        for start, end in events:
            flush.zero_()
            start.record()
            run()
            end.record()
        torch.cuda.synchronize(self.device)
        return [start.elapsed_time(end) / 1e3 for start, end in events]

    def _repeats(self, seconds: float) -> int:
        return max(3, min(50, int(self.seconds_each / max(seconds, 1e-6))))

    @staticmethod
    def _once(run: Run) -> float:
        started_at = perf_counter()
        run()
        return perf_counter() - started_at


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def _captured(run: Run) -> Run:
    """The call as a CUDA graph, which leaves out the host's time; as it is where that fails."""
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        run()  # compiles, and autotunes peers that do
        waits = _waits_for_device(run)
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    if waits:
        return run
    graph = torch.cuda.CUDAGraph()
    try:
        # A capture that fails leaves its own stream behind as the current one.
        with torch.cuda.stream(torch.cuda.current_stream()), torch.cuda.graph(graph):
            run()
    except RuntimeError:
        _end_capture()
        return run
    return graph.replay


def _waits_for_device(run: Run) -> bool:
    """Whether the host waits for the device in this call: then a CUDA graph cannot capture it."""
    torch.cuda.set_sync_debug_mode("error")
    try:
        run()
    except RuntimeError:  # any other error comes again when the call is timed
        return True
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return False


def _end_capture() -> None:
    """After a failed capture torch refuses to make random numbers until a capture succeeds."""
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.current_stream()), suppress(RuntimeError):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            torch.zeros(1, device="cuda")
        graph.replay()


@dataclass(frozen=True)
class Ceiling:
    """The device's best, measured with the same clock."""

    bytes_per_s: float  # of a copy, read and written
    flops_per_s: float  # of a large product in the measured dtype


def measure_ceiling(clock: Clock, dtype: torch.dtype) -> Ceiling:
    on_gpu = clock.device.type == "cuda"
    size, side = (2**30, 8192) if on_gpu else (2**26, 512)
    source = torch.zeros(size, dtype=torch.int8, device=clock.device)
    target = torch.empty_like(source)
    copy_s = clock.seconds(lambda: target.copy_(source))
    a = torch.randn(side, side, dtype=dtype, device=clock.device)
    product_s = clock.seconds(lambda: a @ a)
    return Ceiling(2 * size / copy_s, 2 * side**3 / product_s)


@dataclass(frozen=True)
class Shape:
    tokens: int
    num_heads: int
    head_dim: int
    block_size: int = 64
    lengths: tuple[int, ...] = ()  # of the sequences; one of all tokens if there are none

    def bytes_of(self, tensors: float, dtype: torch.dtype) -> float:
        """Size of so many tensors of this shape."""
        return tensors * self.tokens * self.num_heads * self.head_dim * dtype.itemsize

    @property
    def forward_flops(self) -> float:
        """The state, its reading, and two products with each key of the block."""
        return self.product_flops(2 * self.head_dim + 2 * min(self.block_size, self.tokens))

    def product_flops(self, columns: int) -> float:
        """Operations that multiply every row by so many columns."""
        return 2.0 * self.tokens * self.num_heads * self.head_dim * columns


@dataclass(frozen=True)
class Inputs:
    """Tensors of one shape, made on first use."""

    shape: Shape
    dtype: torch.dtype
    device: torch.device

    @cached_property
    def rows(self) -> tuple[Tensor, Tensor, Tensor]:
        generator = torch.Generator(self.device).manual_seed(0)
        size = self.shape.tokens, self.shape.num_heads, self.shape.head_dim
        q, k, v = (
            torch.randn(size, generator=generator, device=self.device, dtype=self.dtype)
            for _ in range(3)
        )
        return q, k, v

    @cached_property
    def leaves(self) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = (x.detach().requires_grad_() for x in self.rows)
        return q, k, v

    @cached_property
    def grad(self) -> Tensor:
        return torch.randn_like(self.rows[0])

    @cached_property
    def cu_seqlens(self) -> Tensor | None:
        if not self.shape.lengths:
            return None
        bounds = torch.tensor([0, *self.shape.lengths]).cumsum(0, dtype=torch.int32)
        return bounds.to(self.device)

    @cached_property
    def scales(self) -> dict[str, Any]:
        """alpha and beta, different for every head, on the device."""
        heads = torch.linspace(0.8, 1.2, self.shape.num_heads, device=self.device)
        return {"alpha": heads, "beta": heads.flip(0)}

    @cached_property
    def mix(self) -> Tensor:
        return torch.full((self.shape.num_heads,), 0.3, device=self.device)

    @cached_property
    def gate(self) -> Tensor:
        """A mix per token and head."""
        return self.mix.repeat(self.shape.tokens, 1)

    @cached_property
    def affine_map(self) -> tuple[Tensor, Tensor]:
        """The identity, which costs as much as any other map."""
        num_heads, width = self.shape.num_heads, self.shape.head_dim
        weight = torch.eye(width, device=self.device).repeat(num_heads, 1, 1)
        return weight, torch.zeros(num_heads, width, device=self.device)


def floor_seconds(
    shape: Shape, tensors: float, dtype: torch.dtype, ceiling: Ceiling, *, flops: float = 0.0
) -> float:
    """Time to read and write so many tensors, or of the arithmetic where that takes longer."""
    moved = shape.bytes_of(tensors, dtype) / ceiling.bytes_per_s
    return max(moved, flops / ceiling.flops_per_s)


def forward_floor(shape: Shape, dtype: torch.dtype, ceiling: Ceiling) -> float:
    """Six tensors, or the arithmetic where blocks are large."""
    return floor_seconds(shape, 6, dtype, ceiling, flops=shape.forward_flops)
