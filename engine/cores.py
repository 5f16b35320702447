"""How many cores this process may keep busy, whatever the machine has."""

from __future__ import annotations

import math
import os
from pathlib import Path

_CGROUPS = Path("/sys/fs/cgroup")


def usable_cores(cgroups: Path = _CGROUPS) -> int:
    """Those it may run on, and no more than a container's quota of processor time pays for:
    threads beyond it would all be stopped for the rest of every period."""
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    else:
        cores = os.cpu_count() or 1
    quota = _quota(cgroups)
    return cores if quota is None else min(cores, max(1, math.ceil(quota)))


def _quota(cgroups: Path) -> float | None:
    """Cores' worth of time, by version 2 of control groups or version 1; None without a limit."""
    try:
        unified = cgroups / "cpu.max"
        if unified.is_file():
            limit, period = unified.read_text().split()
        else:
            limit = (cgroups / "cpu" / "cpu.cfs_quota_us").read_text()
            period = (cgroups / "cpu" / "cpu.cfs_period_us").read_text()
        return float(limit) / float(period) if float(limit) > 0 else None
    except (OSError, ValueError):  # no control groups, or "max"
        return None
