"""Launches that end before the driver: to measure what comes before, and to see what it is given.

Kernels are compiled for an H100, and everything runs that Triton does up to its launcher.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

import torch
from triton.backends.compiler import GPUTarget  # type: ignore[import-untyped]
from triton.backends.driver import DriverBase  # type: ignore[import-untyped]
from triton.runtime import driver  # type: ignore[import-untyped]

Launched = Callable[..., object]
Loaded = Callable[[bytes], object]

SHARED_BYTES, THREADS = 227 * 1024, 1024  # of a program, at most
_handles = count(1)


@contextmanager
def launches_end_at(launched: Launched, loaded: Loaded = lambda _: None) -> Iterator[None]:
    """For a machine without a GPU: `launched` gets what Triton's launcher would.

    `loaded` gets the machine code of every kernel, when it is first launched.
    """
    driver.set_active(_NoDriver(launched, loaded))
    try:
        yield
    finally:
        driver.set_active(None)  # the next to ask makes the machine's own


class _Utils:
    """What a compiled kernel asks of the device."""

    def __init__(self, loaded: Loaded) -> None:
        self._loaded = loaded

    def load_binary(self, _: str, cubin: bytes, *__: object) -> tuple[int, int, int, int, int]:
        """A handle of its own for every build, its registers and its spills, and threads."""
        self._loaded(cubin)
        handle = next(_handles)
        return handle, handle, 0, 0, THREADS

    def get_device_properties(self, _: int) -> dict[str, int]:
        return {"max_shared_mem": SHARED_BYTES}


class _NoDriver(DriverBase):  # type: ignore[misc]
    def __init__(self, launched: Launched, loaded: Loaded) -> None:
        self._launched = launched
        self.utils = _Utils(loaded)

    def launcher_cls(self, *_: object) -> Launched:
        return self._launched

    @classmethod
    def is_active(cls) -> bool:
        return True

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, _: int) -> int:
        return 0

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cpu")

    def map_python_to_cpp_type(self, ty: str) -> str:
        return ty

    def get_benchmarker(self) -> Any:
        raise RuntimeError("nothing runs here, so nothing can be timed")
