"""What a run was measured on: without it, a figure says nothing."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import torch

from engine.types import ModelInfo
from service.version import version_of

_ROOT = Path(__file__).resolve().parents[2]
_PACKAGES = ("lln", "torch", "numpy", "tokenizers")


def machine_of(model: ModelInfo) -> Mapping[str, str]:
    on_gpu = model.device.startswith("cuda")
    return {
        "device": torch.cuda.get_device_name(model.device) if on_gpu else cpu_name(),
        "device_type": model.device,
        "dtype": model.dtype,
        "cores": str(os.cpu_count()),
        "threads": str(torch.get_num_threads()),
        "system": platform.platform(terse=True),
        "python": platform.python_version(),
        **{package: version_of(package) for package in _PACKAGES},
        "commit": _commit(),
        "model": model.name,
        "revision": model.revision,
    }


@cache
def cpu_name() -> str:
    listing = Path("/proc/cpuinfo")
    lines = listing.read_text().splitlines() if listing.exists() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())


@cache
def _commit() -> str:
    """Of a source tree; an installed package is told by its version."""
    if not (_ROOT / ".git").exists():
        return "unknown"
    try:
        found = subprocess.run(
            ["git", "rev-parse", "--short=12", "HEAD"],
            cwd=_ROOT,
            capture_output=True,
            text=True,
            timeout=5,
        )
    except (OSError, subprocess.TimeoutExpired):
        return "unknown"
    return found.stdout.strip() or "unknown"
