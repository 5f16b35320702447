"""How long a call takes on a device, and what that device can move and multiply at best."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from statistics import median
from time import perf_counter

import torch

Run = Callable[[], object]

FLUSH_BYTES = 256 * 2**20
"""More than any L2 cache: what one call leaves there must not speed up the next."""


@dataclass(frozen=True)
class Clock:
    device: torch.device
    seconds_each: float = 0.3
    """About how long to repeat one measurement."""

    def seconds(self, run: Run) -> float:
        """The median of some calls, each with a cold cache where there is a GPU."""
        if self.device.type == "cuda":
            return self._on_gpu(run)
        run()
        first = self._once(run)
        return median([first, *(self._once(run) for _ in range(self._repeats(first) - 1))])

    def seconds_in_a_row(self, run: Run, calls: int = 100) -> float:
        """One of many calls after each other: what launching costs, with a warm cache."""
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
        """What a call allocates beyond what is there already; 0 where that is not known."""
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
    """The call as a CUDA graph, so that the host's own time is not measured; or as it is."""
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        run()  # compiles, and lets whoever tunes itself do so
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
    """Whether the host does, somewhere in this call: then no graph can take it in."""
    torch.cuda.set_sync_debug_mode("error")
    try:
        run()
    except RuntimeError:  # one of another kind comes again when the call is timed
        return True
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return False


def _end_capture() -> None:
    """After a capture that failed torch refuses to make random numbers, until one succeeds."""
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.current_stream()), suppress(RuntimeError):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            torch.zeros(1, device="cuda")
        graph.replay()


@dataclass(frozen=True)
class Ceiling:
    """What this device does at best, measured as everything else is."""

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
