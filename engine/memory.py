"""How much memory there is, how much work takes, and what running out of it looks like."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

_CPU_MESSAGES = ("can't allocate memory", "not enough memory")
_CGROUP = Path("/sys/fs/cgroup")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether the same work might run if it were smaller."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    # On a CPU torch has no class of its own for it.
    return isinstance(error, RuntimeError) and any(text in str(error) for text in _CPU_MESSAGES)


def free_bytes(device: torch.device) -> int:
    """What new work on this device could still allocate."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        reserved = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return free + reserved
    limits = [_meminfo_available(), _cgroup_available()]
    return min((limit for limit in limits if limit is not None), default=1 << 62)


def let_go_of_caches(device: torch.device) -> None:
    """Before work that did not fit is tried again, smaller."""
    if device.type == "cuda":
        torch.cuda.empty_cache()


class PeakBytes:
    """The most that tensors held at once, above what they held at the start."""

    def __init__(self) -> None:
        self.peak = 0


@contextmanager
def watch_peak(device: torch.device) -> Iterator[PeakBytes]:
    found = PeakBytes()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        yield found
        torch.cuda.synchronize(device)
        found.peak = torch.cuda.max_memory_allocated(device) - before
    else:
        with _LiveStorages() as live:
            yield found
        found.peak = live.peak


class _LiveStorages(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Follows every tensor that an operation returns: torch's CPU allocator keeps no count."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.peak = 0
        self._held = 0
        self._tensors_of: dict[int, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        known = {
            leaf.untyped_storage().data_ptr()
            for leaf in tree_leaves((args, kwargs))
            if _has_storage(leaf)
        }
        for leaf in tree_leaves(out):
            if _has_storage(leaf):
                self._follow(leaf, known)
        return out

    def _follow(self, tensor: torch.Tensor, known: set[int]) -> None:
        storage = tensor.untyped_storage()
        address, size = storage.data_ptr(), storage.nbytes()
        if address in known and address not in self._tensors_of:
            return  # a view of what was there before
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


def _has_storage(value: object) -> bool:
    return isinstance(value, torch.Tensor) and not value.is_mkldnn and value.numel() > 0


def _meminfo_available() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:  # not Linux
        return None
    sizes = {line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines}
    return sizes.get("MemAvailable")


def _cgroup_available() -> int | None:
    """What a container's limit leaves."""
    try:
        limit = (_CGROUP / "memory.max").read_text().strip()
        used = int((_CGROUP / "memory.current").read_text()) - _cgroup_file_cache()
    except OSError:
        return None
    return None if limit == "max" else max(int(limit) - used, 0)


def _cgroup_file_cache() -> int:
    """Pages of files, counted as used, that the kernel drops as soon as others need them."""
    lines = (_CGROUP / "memory.stat").read_text().splitlines()
    return next((int(line.split()[1]) for line in lines if line.startswith("inactive_file ")), 0)
