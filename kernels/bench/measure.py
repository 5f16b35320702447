"""Times calls on a device. `Clock` times a call; `Shape` and `Inputs` are what is measured."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from statistics import median
from time import perf_counter
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

from kernels.attention import Gate, PackedSequences

Run = Callable[[], object]

FLUSH_BYTES = 256 * 2**20
"""More than any L2 cache, so that one call's data does not speed up the next."""


class Times(NamedTuple):
    """Seconds of a call: the median, and the bounds of the middle three fifths."""

    median: float
    p20: float
    p80: float

    @classmethod
    def of(cls, samples: Sequence[float]) -> Self:
        ordered = sorted(samples)
        last = len(ordered) - 1
        return cls(median(ordered), ordered[round(0.2 * last)], ordered[round(0.8 * last)])


@dataclass(frozen=True)
class Clock:
    device: torch.device
    seconds_each: float = 0.3
    """About how long to repeat one measurement."""

    def seconds(self, run: Run) -> float:
        return self.times(run).median

    def times(self, run: Run) -> Times:
        """Times of several calls, each with a cold cache on a GPU."""
        if self.device.type == "cuda":
            return Times.of(self._on_gpu(run))
        run()
        first = self._once(run)
        return Times.of([first, *(self._once(run) for _ in range(self._repeats(first) - 1))])

    def times_in_a_row(self, run: Run, calls: int = 50, rounds: int = 9) -> Times:
        """Times of a call among many in a row, with a warm cache, one after the other on the
        device.

        The calls are queued behind other work, so that the device does not wait for the host.
        """
        if self.device.type != "cuda":
            return self.times(run)
        run()
        work_ahead = _work_for(self.device, 2 * _host_seconds(run, calls))
        return Times.of([_behind(work_ahead, run, calls, self.device) for _ in range(rounds)])

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

    def _on_gpu(self, run: Run) -> list[float]:
        replay, flush = _captured(run), flusher(_more_than_the_cache(self.device))
        first = self._times(replay, flush, 2)[-1]
        return self._times(replay, flush, self._repeats(first))

    def _times(self, run: Run, flush: Run, count: int) -> list[float]:
        events = [(_event(), _event()) for _ in range(count)]
        for start, end in events:
            flush()
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


def flusher(lines: Tensor) -> Run:
    """Fills the L2 cache with lines that are only read.

    A cache filled by writing would write its lines back while the next call is timed.
    """
    total = lines.new_empty(())
    return lambda: torch.sum(lines, 0, out=total)


def _more_than_the_cache(device: torch.device) -> Tensor:
    return torch.ones(FLUSH_BYTES // 4, dtype=torch.float32, device=device)


def _host_seconds(run: Run, calls: int) -> float:
    """How long the host takes to queue this many calls."""
    torch.cuda.synchronize()
    started_at = perf_counter()
    for _ in range(calls):
        run()
    queued_at = perf_counter()
    torch.cuda.synchronize()
    return queued_at - started_at


def _work_for(device: torch.device, seconds: float) -> Run:
    """Products that keep the device busy for about so long, in few launches."""
    a = torch.ones(8192, 8192, dtype=torch.bfloat16, device=device)
    product = torch.empty_like(a)

    def multiply(times: int) -> None:
        for _ in range(times):
            torch.mm(a, a, out=product)

    multiply(1)
    start, end = _event(), _event()
    start.record()
    multiply(4)
    end.record()
    torch.cuda.synchronize(device)
    each = float(start.elapsed_time(end)) / 1e3 / 4
    times = int(seconds / each) + 1
    return lambda: multiply(times)


def _behind(work: Run, run: Run, calls: int, device: torch.device) -> float:
    """The device's time for one of the calls."""
    start, end = _event(), _event()
    work()
    start.record()
    for _ in range(calls):
        run()
    end.record()
    torch.cuda.synchronize(device)
    return float(start.elapsed_time(end)) / 1e3 / calls


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
class Shape:
    tokens: int
    num_heads: int
    head_dim: int
    block_size: int = 64
    lengths: tuple[int, ...] = ()  # of the sequences; one of all tokens if there are none

    def bytes_of(self, tensors: float, dtype: torch.dtype) -> float:
        """Size of this many tensors of this shape."""
        return tensors * self.tokens * self.num_heads * self.head_dim * dtype.itemsize

    @property
    def keys(self) -> float:
        """Keys of a token's own block, on average: the last block of a sequence may be short."""
        pairs = 0
        for length in self.lengths or (self.tokens,):
            blocks, rest = divmod(length, self.block_size)
            pairs += blocks * self.block_size**2 + rest**2
        return pairs / self.tokens

    def product_flops(self, columns: float) -> float:
        """Operations that multiply every row by this many columns."""
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
    def packed(self) -> PackedSequences | None:
        """As a server has it, which knows the bounds."""
        if not self.shape.lengths:
            return None
        return PackedSequences.of([0, *accumulate(self.shape.lengths)], self.device)

    @cached_property
    def scales(self) -> dict[str, Any]:
        """alpha and beta, different for every head, on the device."""
        heads = torch.linspace(0.8, 1.2, self.shape.num_heads, device=self.device)
        return {"alpha": heads, "beta": heads.flip(0)}

    @cached_property
    def mix(self) -> Tensor:
        return torch.full((self.shape.num_heads,), 0.3, device=self.device)

    @cached_property
    def gate(self) -> Gate:
        """A gate with which all tokens choose the same mix: it costs as much as any other."""
        weight = torch.zeros(self.shape.num_heads, self.shape.head_dim, device=self.device)
        return Gate(weight, torch.logit(self.mix))

    @cached_property
    def affine_map(self) -> tuple[Tensor, Tensor]:
        """The identity, which costs as much as any other map."""
        num_heads, width = self.shape.num_heads, self.shape.head_dim
        weight = torch.eye(width, device=self.device).repeat(num_heads, 1, 1)
        return weight, torch.zeros(num_heads, width, device=self.device)
