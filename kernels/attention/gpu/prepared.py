"""A launch whose arguments are the same from call to call, but for a few.

At every launch Triton binds and describes all arguments, to find the compiled kernel for them. That
takes the host longer than a batch of short texts takes a GPU. A build depends on the types of the
arguments, on some numbers, and on whether pointers are multiples of 16. So a launch that is
prepared once, with all numbers that a build depends on, later goes straight to the compiled kernel.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import itemgetter
from typing import Any

import torch
import triton  # type: ignore[import-untyped]
from torch import Tensor
from triton import knobs
from triton.runtime import driver  # type: ignore[import-untyped]

from kernels.attention.gpu.launch import Arguments, Grid, as_grid, launch

ALIGNMENT = 16
"""Bytes. Triton compiles anew for a pointer that is no multiple of it."""

KNOWN_TRITON = ("3.6.", "3.7.")
"""Versions whose compiled kernels are launched without Triton's search. Others search each time."""


INTERPRETED: bool = knobs.runtime.interpret  # read once: it is a variable of the environment


def kept_stream(rows: Tensor, *others: Tensor | None) -> int | None:
    """The stream for launches of kept builds.

    None where a pointer is not as they expect it, or where a profiler asks to be told of launches.
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
    hooks = knobs.runtime.launch_enter_hook, knobs.runtime.launch_exit_hook
    return any(getattr(hook, "calls", hook) for hook in hooks)


class Prepared:
    """A kernel with what does not differ between its launches on one device."""

    def __init__(self, kernel: Any, **fixed: object) -> None:
        self._kernel, self._fixed = kernel, fixed
        self._build: Any = None
        self._in_order: Callable[[Arguments], tuple[Any, ...]]
        self._stand_in: str
        self._absent: tuple[str, ...]

    def __call__(self, programs: int | Grid, stream: int | None, **given: object) -> None:
        """`given` are tensors, and numbers that no build depends on.

        The same of them are None in each call. `stream` as `kept_stream` found it.
        """
        grid = as_grid(programs)
        if not all(grid):
            return
        build = self._build
        if build is None or stream is None:
            build = launch(self._kernel, grid, **self._fixed, **given)
            if stream is not None and _can_keep(build):
                self._keep(build, given)
            return
        if self._absent:
            given.update(dict.fromkeys(self._absent, given[self._stand_in]))
        # As Triton does when its search is over; nobody watches, so there is nothing to tell.
        build.run(
            *(*grid, stream, build.function, build.packed_metadata),
            *(None, None, None),
            *self._in_order(self._fixed | given),
        )

    def _keep(self, build: Any, given: Arguments) -> None:
        """As in `launch`, the first tensor stands in for those that are absent."""
        self._in_order = itemgetter(*self._kernel.arg_names)
        self._stand_in = next(name for name, x in given.items() if isinstance(x, Tensor))
        self._absent = tuple(name for name, x in given.items() if x is None)
        self._build = build


def _can_keep(build: Any) -> bool:
    """On AMD's devices a build depends on a tensor's size too."""
    known: bool = triton.__version__.startswith(KNOWN_TRITON)
    return build is not None and known and torch.version.hip is None
