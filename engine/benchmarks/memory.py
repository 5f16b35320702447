"""How much memory work takes at its peak, where the machine can tell."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

_STATUS = Path("/proc/self/status")
_CLEAR_REFS = Path("/proc/self/clear_refs")
_RESET_PEAK = "5"


class PeakMemory:
    """The most that was held above what was held at the start, over steps that take turns.

    On a GPU that is what torch allocated. On Linux it is resident memory, which counts what other
    threads take during a step as well, so it is exact on an idle machine only.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._can_tell = device.type == "cuda" or _can_reset()
        self._peak = 0
        if self._can_tell:
            give_back_free_memory()
            self._start = self._held()

    @property
    def bytes(self) -> int | None:
        """None where the machine cannot tell."""
        return self._peak if self._can_tell else None

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Around each step."""
        self._forget_peak()
        yield
        if self._can_tell:
            self._peak = max(self._peak, self._highest() - self._start)

    def _forget_peak(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self._device)
        elif self._can_tell:
            _CLEAR_REFS.write_text(_RESET_PEAK)

    def _held(self) -> int:
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
    """What this process holds now; Linux tells."""
    return _status_bytes("VmRSS")


def give_back_free_memory() -> None:
    """glibc keeps freed memory, which would hide that the work needs as much."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _status_bytes(field: str) -> int:
    found = re.search(rf"^{field}:\s+(\d+) kB$", _STATUS.read_text(), re.MULTILINE)
    assert found is not None, "Linux names it"
    return int(found.group(1)) * 1024
