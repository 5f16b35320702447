"""A launch whose arguments are the same from call to call, but for a few.

At every launch Triton binds and describes all arguments, to find the compiled kernel for them. That
takes the host longer than a batch of short texts takes a GPU. A build depends on the types of the
arguments, on some numbers, and on whether pointers are multiples of 16. So a launch that is
prepared once, with all numbers that a build depends on, later goes straight to the compiled kernel.
"""

from __future__ import annotations

from typing import Any

import torch
import triton  # type: ignore[import-untyped]
from torch import Tensor
from triton import knobs
from triton.runtime import driver  # type: ignore[import-untyped]

from kernels.attention.gpu.launch import Grid, launch

ALIGNMENT = 16
"""Bytes. Triton compiles again for a pointer that is not a multiple of it."""

KNOWN_TRITON = ("3.6.", "3.7.")
"""Versions whose compiled kernels are launched without Triton's search. Others search each time."""


INTERPRETED: bool = knobs.runtime.interpret  # read once: it is an environment variable


def kept_stream(rows: Tensor, *others: Tensor | None) -> int | None:
    """The stream for launches of kept builds.

    None if a pointer is not aligned as they expect, or if a profiler watches launches.
    """
    addresses = rows.data_ptr()
    for x in others:
        if x is not None:
            addresses |= x.data_ptr()
    if addresses % ALIGNMENT or INTERPRETED or _is_watched():
        return None
    stream: int = driver.active.get_current_stream(rows.get_device())
    return stream


def _is_watched() -> bool:
    entered, left = knobs.runtime.launch_enter_hook, knobs.runtime.launch_exit_hook
    return bool(getattr(entered, "calls", entered) or getattr(left, "calls", left))


class Prepared:
    """A kernel with what does not differ between its launches on one device: its last arguments."""

    def __init__(self, kernel: Any, **fixed: object) -> None:
        self._kernel, self._fixed = kernel, fixed
        self._run: Any = None
        self._first: tuple[object, ...]  # of Triton's launcher, after the grid and the stream
        self._last: tuple[object, ...]

    def __call__(self, grid: Grid, stream: int | None, *given: object) -> None:
        """`given` are the kernel's first arguments: tensors, and numbers that no build depends on.

        The same of them are None in each call. `stream` as `kept_stream` found it.
        """
        if self._run is None or stream is None:
            names = self._kernel.arg_names
            first = dict(zip(names, given, strict=False))
            build = launch(self._kernel, grid, **first, **self._fixed)
            if stream is not None and _can_keep(build):
                self._keep(build, names[len(given) :])
        elif 0 not in grid:
            # An absent tensor is a null pointer, which the build does not read.
            self._run(*grid, stream, *self._first, *given, *self._last)

    def _keep(self, build: Any, last: list[str]) -> None:
        """Keep what Triton passes to a build that it has found. Its launch hooks are left out."""
        self._last = tuple(self._fixed[name] for name in last)
        self._first = build.function, build.packed_metadata, None, None, None
        self._run = build.run


def _can_keep(build: Any) -> bool:
    """On AMD's devices a build depends on a tensor's size too."""
    known: bool = triton.__version__.startswith(KNOWN_TRITON)
    return build is not None and known and torch.version.hip is None
