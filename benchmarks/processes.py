"""Processes below another, and the processor time they have used (Linux)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_TICKS = os.sysconf("SC_CLK_TCK")


class Process(NamedTuple):
    pid: int
    parent: int
    name: str
    cpu_s: float


def processes_below(ancestor: int) -> list[Process]:
    """A process and all that it or its children have started, as far as they still run."""
    found = {process.pid: process for process in _processes()}

    def is_below(pid: int) -> bool:
        return pid == ancestor or (pid in found and is_below(found[pid].parent))

    return [process for pid, process in found.items() if is_below(pid)]


def _processes() -> Iterator[Process]:
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            status = (folder / "stat").read_text()
            name = (folder / "cmdline").read_bytes().decode("utf-8", "replace")
        except OSError:
            continue  # it has ended
        fields = status.rpartition(")")[2].split()
        ticks = sum(map(int, fields[11:15]))  # own, and those of children that were waited for
        yield Process(int(folder.name), int(fields[1]), name, ticks / _TICKS)
