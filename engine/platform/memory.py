"""Memory of the device: what is free, errors when it runs out, huge pages, and peak usage.

Two classes measure a peak. `watch_peak` counts bytes of tensors and is exact. `PeakMemory` counts
the memory of the process, including what libraries allocate, and needs an idle machine.
"""

from __future__ import annotations

import ctypes
import re
import sys
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from engine.platform.byte_products import BYTE_PRODUCT
from engine.platform.process import trim_heap

_CPU_MESSAGES = ("can't allocate memory", "not enough memory")
_CGROUP = Path("/sys/fs/cgroup")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether the error means that memory ran out, so a smaller batch might run."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    # On a CPU torch raises a plain RuntimeError.
    return isinstance(error, RuntimeError) and any(text in str(error) for text in _CPU_MESSAGES)


def free_bytes(device: torch.device) -> int:
    """How much can still be allocated on this device."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        reserved = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return free + reserved
    limits = [_meminfo_available(), _cgroup_available()]
    return min((limit for limit in limits if limit is not None), default=1 << 62)


def empty_device_cache(device: torch.device) -> None:
    """Returns memory that torch caches, before a smaller batch is tried again."""
    if device.type == "cuda":
        torch.cuda.empty_cache()


def _meminfo_available() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:  # not Linux
        return None
    sizes = {line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines}
    return sizes.get("MemAvailable")


def _cgroup_available() -> int | None:
    """What is left below a container's limit."""
    try:
        limit = (_CGROUP / "memory.max").read_text().strip()
        used = int((_CGROUP / "memory.current").read_text()) - _cgroup_file_cache()
    except OSError:
        return None
    return None if limit == "max" else max(int(limit) - used, 0)


def _cgroup_file_cache() -> int:
    """File pages that count as used, but that the kernel drops when memory is needed."""
    lines = (_CGROUP / "memory.stat").read_text().splitlines()
    return next((int(line.split()[1]) for line in lines if line.startswith("inactive_file ")), 0)


_PAGE = 1 << 21
_MIN_BYTES = 8 * _PAGE  # smaller tensors share their pages with others
_MADV_HUGEPAGE = 14  # of <sys/mman.h>


def on_huge_pages(tensor: Tensor) -> Tensor:
    """Asks Linux to put a large, unwritten CPU tensor on pages of 2 MiB, and returns the tensor.

    Freeing gigabytes of small pages takes a tenth of a second in which nothing else runs; with huge
    pages it takes milliseconds. If Linux has none, nothing changes.
    """
    libc, size = _libc(), tensor.untyped_storage().nbytes()
    if libc is not None and tensor.device.type == "cpu" and size >= _MIN_BYTES:
        start = tensor.data_ptr()
        first, end = -(-start // _PAGE) * _PAGE, (start + size) // _PAGE * _PAGE
        libc.madvise(ctypes.c_void_p(first), ctypes.c_size_t(end - first), _MADV_HUGEPAGE)
    return tensor


@cache
def _libc() -> Any:
    return ctypes.CDLL(None) if sys.platform == "linux" else None


class PeakBytes:
    """The most bytes that tensors took at once, beyond those at the start."""

    def __init__(self) -> None:
        self.peak = 0


@contextmanager
def watch_peak(device: torch.device, *, multiplies: bool = True) -> Iterator[PeakBytes]:
    """Measures the tensors of the block that it surrounds; read `peak` afterwards.

    Unless it `multiplies`, an encoder's large products on a CPU are left out. Their results have
    the right sizes and any numbers, so what follows takes as many bytes and a fifth of the time.
    """
    found = PeakBytes()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        yield found
        torch.cuda.synchronize(device)
        found.peak = torch.cuda.max_memory_allocated(device) - before
    else:
        with _LiveStorages(multiplies=multiplies) as live:
            yield found
        found.peak = live.peak


class _LiveStorages(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Tracks every tensor that an operation returns, since torch's CPU allocator has no counter."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing is compiled here. torch would load its compiler, for two seconds, to say so."""
        return False

    def __init__(self, *, multiplies: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._run = _run if multiplies else _run_without_products
        self.peak = 0
        self._held = 0
        self._tensors_of: dict[int, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = self._run(func, args, kwargs or {})
        known = {
            leaf.untyped_storage().data_ptr()
            for leaf in tree_leaves((args, kwargs))
            if _has_storage(leaf)
        }
        for leaf in tree_leaves(out):
            if _has_storage(leaf):
                self._track(leaf, known)
        return out

    def _track(self, tensor: torch.Tensor, known: set[int]) -> None:
        storage = tensor.untyped_storage()
        address, size = storage.data_ptr(), storage.nbytes()
        if address in known and address not in self._tensors_of:
            return  # a view of a tensor that existed before
        if address not in self._tensors_of:
            self._tensors_of[address] = 0
            self._held += size
            self.peak = max(self.peak, self._held)
        self._tensors_of[address] += 1
        weakref.finalize(tensor, self._forget, address, size)

    def _forget(self, address: int, size: int) -> None:
        self._tensors_of[address] -= 1
        if not self._tensors_of[address]:
            del self._tensors_of[address]
            self._held -= size


def _run(func: Any, args: Any, kwargs: Any) -> Any:
    return func(*args, **kwargs)


_LINEAR = torch.ops.mkldnn._linear_pointwise
_WEIGHT_AT = {_LINEAR.default: 1, _LINEAR.binary: 2}
_ATTENTION = {
    torch.ops.aten.scaled_dot_product_attention.default,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default,
}


def _run_without_products(func: Any, args: Any, kwargs: Any) -> Any:
    if func in _WEIGHT_AT:
        x, weight = args[0], args[_WEIGHT_AT[func]]
        return x.new_empty(*x.shape[:-1], len(weight))
    if func is BYTE_PRODUCT:
        x, weight = args[0], args[3]
        return x.new_empty(*x.shape[:-1], weight.shape[1], dtype=torch.float32)
    if func in _ATTENTION and len(args) == 3 and not kwargs:
        # One key instead of all: the results keep the layout that this processor gives them.
        q, k, v = args
        return func(q, k[..., :1, :], v[..., :1, :])
    return func(*args, **kwargs)


def _has_storage(value: object) -> bool:
    return isinstance(value, torch.Tensor) and not value.is_mkldnn and value.numel() > 0


_STATUS = Path("/proc/self/status")
_CLEAR_REFS = Path("/proc/self/clear_refs")
_RESET_PEAK = "5"


class PeakMemory:
    """The peak memory of one of several measurements whose steps alternate, beyond the start.

    On a GPU it counts what torch allocated. On Linux it counts resident memory, which includes
    other threads, so it is exact on an idle machine only.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._is_supported = device.type == "cuda" or _can_reset()
        self._peak = 0
        if self._is_supported:
            trim_heap()  # what glibc keeps would hide what the work needs
            self._start = self._current()

    @property
    def bytes(self) -> int | None:
        """None where the machine cannot measure it."""
        return self._peak if self._is_supported else None

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Surrounds each step."""
        self._forget_peak()
        yield
        if self._is_supported:
            self._peak = max(self._peak, self._highest() - self._start)

    def _forget_peak(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self._device)
        elif self._is_supported:
            _CLEAR_REFS.write_text(_RESET_PEAK)

    def _current(self) -> int:
        if self._device.type == "cuda":
            return torch.cuda.memory_allocated(self._device)
        return resident_bytes()

    def _highest(self) -> int:
        if self._device.type == "cuda":
            return torch.cuda.max_memory_allocated(self._device)
        return _status_bytes("VmHWM")


def _can_reset() -> bool:
    try:
        _CLEAR_REFS.write_text(_RESET_PEAK)
    except OSError:
        return False
    return True


def resident_bytes() -> int:
    """Resident memory of this process, on Linux."""
    return _status_bytes("VmRSS")


def _status_bytes(field: str) -> int:
    found = re.search(rf"^{field}:\s+(\d+) kB$", _STATUS.read_text(), re.MULTILINE)
    assert found is not None, f"/proc/self/status has no {field}"
    return int(found.group(1)) * 1024
