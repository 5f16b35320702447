"""What this process holds of the machine's memory, as Linux counts it."""

from __future__ import annotations

from pathlib import Path

_STATUS, _RESET_PEAK = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def resident_bytes() -> int:
    return _status("VmRSS")


def peak_bytes() -> int:
    """The most it held since `forget_peak`."""
    return _status("VmHWM")


def forget_peak() -> None:
    _RESET_PEAK.write_text("5")


def _status(name: str) -> int:
    lines = _STATUS.read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))
