"""One benchmark run: its plan, state and rows, and a description of the machine it ran on."""

from __future__ import annotations

import asyncio
import os
import platform
import re
import subprocess
import time
import uuid
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Literal, TypeAlias

import torch

from engine.types import ModelInfo
from service.benchmarks.suites import BenchmarkPlan, Row
from service.errors import ErrorFields
from service.replica import REPLICA_NAME
from service.version import version_of

JobState: TypeAlias = Literal["queued", "running", "done", "failed", "cancelled", "interrupted"]
ACTIVE: tuple[JobState, ...] = ("queued", "running")

_ID_WITH_REPLICA = re.compile(f"bench-[0-9a-f]{{12}}-({REPLICA_NAME})")


def new_id(replica: str = "") -> str:
    """Returns an id that tells which replica runs the benchmark."""
    own = f"bench-{uuid.uuid4().hex[:12]}"
    return f"{own}-{replica}" if replica else own


def replica_of(job_id: str) -> str:
    """Returns the name of the replica in an id; empty for an earlier version's id."""
    found = _ID_WITH_REPLICA.fullmatch(job_id)
    return found[1] if found else ""


@dataclass(eq=False, kw_only=True)
class BenchmarkJob:
    """A run. Only `BenchmarkJobs` changes it; readers can follow it with `watch`."""

    plan: BenchmarkPlan
    num_rows: int
    """The number of rows of the finished run."""
    machine: Mapping[str, str]
    id: str = field(default_factory=new_id)
    state: JobState = "queued"
    created_at: float = field(default_factory=time.time)
    started_at: float | None = None
    finished_at: float | None = None
    rows: list[Row] = field(default_factory=list)  # grows while the run lasts
    error: ErrorFields | None = None
    is_elsewhere: bool = False
    """Whether another server runs it. This one has what was stored when it was read."""
    _changed: asyncio.Event = field(default_factory=asyncio.Event, repr=False)

    @property
    def is_active(self) -> bool:
        return self.state in ACTIVE

    def start(self) -> None:
        self.state, self.started_at = "running", time.time()
        self._notify()

    def add(self, row: Row) -> None:
        self.rows.append(row)
        self._notify()

    def finish(self, state: JobState, error: ErrorFields | None = None) -> None:
        self.state, self.error, self.finished_at = state, error, time.time()
        self._notify()

    async def watch(self) -> AsyncIterator[tuple[Row, ...]]:
        """Yields the rows so far, then new ones as they come, until the run ends.

        An empty tuple means that the run has started or ended.
        """
        seen = 0
        while True:
            changed, active = self._changed, self.is_active
            rows = tuple(self.rows[seen:])
            seen += len(rows)
            yield rows
            if not active or self.is_elsewhere:
                return
            await changed.wait()

    def _notify(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()


_ROOT = Path(__file__).resolve().parents[2]
_PACKAGES = ("lln", "torch", "numpy", "tokenizers")


def describe_machine(model: ModelInfo) -> Mapping[str, str]:
    """Returns the hardware, the versions and the commit that a figure depends on."""
    on_gpu = model.device.startswith("cuda")
    return {
        "device": torch.cuda.get_device_name(model.device) if on_gpu else cpu_name(),
        "device_type": model.device,
        "dtype": model.dtype,
        **describe_build(),
        "model": model.name,
        "revision": model.revision,
    }


def describe_build() -> Mapping[str, str]:
    """Returns what a figure depends on besides the device and the model."""
    return {
        "cores": str(os.cpu_count()),
        "threads": str(torch.get_num_threads()),
        "system": platform.platform(terse=True),
        "python": platform.python_version(),
        **{package: version_of(package) for package in _PACKAGES},
        "commit": _commit(),
    }


@cache
def cpu_name() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())


@cache
def _commit() -> str:
    """Returns the commit of a source tree. An installed package has only its version."""
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
