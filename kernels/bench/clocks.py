"""A GPU's clocks as nvidia-smi tells them. Without it they are not known."""

from __future__ import annotations

import subprocess
from typing import NamedTuple

import torch

MEGA = 1e6


class Clocks(NamedTuple):
    """Megahertz of the processors, at most and now, and of the memory."""

    most_mhz: float
    now_mhz: float
    memory_mhz: float


QUERY = "clocks.max.sm,clocks.sm,clocks.mem"


def clocks(device: torch.device) -> Clocks | None:
    if device.type != "cuda":
        return None
    # By its own name: nvidia-smi counts GPUs in another order, also those not seen from here.
    name = getattr(torch.cuda.get_device_properties(device), "uuid", None)
    command = ["nvidia-smi", f"--id=GPU-{name}", f"--query-gpu={QUERY}"]
    command.append("--format=csv,noheader,nounits")
    try:
        told = subprocess.run(command, capture_output=True, text=True, check=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return None
    return parse(told.stdout)


def parse(line: str) -> Clocks | None:
    """None if a number is missing: some virtual GPUs report [N/A]."""
    try:
        most, now, memory = map(float, line.split(","))
    except ValueError:
        return None
    return Clocks(most, now, memory)


def max_clock_hz(device: torch.device) -> float | None:
    found = clocks(device)
    return None if found is None else found.most_mhz * MEGA
