"""The memory of the process on its device, read when a page is asked for."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NamedTuple

from service.metrics.catalogue import Catalogue


def add_device_memory(catalogue: Catalogue) -> None:
    memory = catalogue.gauge(
        "device_memory_bytes",
        "Memory of the process on its device; on a CPU, its resident memory.",
        ("kind",),
    )
    memory.labels("allocated").set_function(lambda: _device_memory().allocated)
    memory.labels("peak").set_function(lambda: _device_memory().peak)


class _Memory(NamedTuple):
    allocated: float
    peak: float


def _device_memory() -> _Memory:
    # Not imported here: reading a metric must not initialise a device.
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized():
        return _Memory(torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated())
    return _resident_memory()


def _resident_memory() -> _Memory:
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:  # not Linux
        return _Memory(float("nan"), float("nan"))
    kilobytes = {line.split(":")[0]: line.split()[1] for line in lines if line.startswith("Vm")}
    return _Memory(float(kilobytes["VmRSS"]) * 1024, float(kilobytes["VmHWM"]) * 1024)
