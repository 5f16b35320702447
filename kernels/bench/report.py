"""Measured rows: a JSON file, a table for the terminal, and pictures by length.

The file is rewritten after every row, so a run that is cut off loses little.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("torch", "triton", "flash-attn", "flash-linear-attention", "flash-bla")


@dataclass(frozen=True, kw_only=True)
class Row:
    """One measured call. A call that failed has no seconds and says why."""

    suite: str
    name: str
    tokens: int
    num_heads: int
    head_dim: int
    dtype: str
    block_size: int | None = None
    seconds: float | None = None  # the median
    p20_seconds: float | None = None
    p80_seconds: float | None = None
    clock_mhz: float | None = None  # of a GPU's processors, just after
    floors: dict[str, float] | None = None  # the least it can take, by what limits it
    peak_bytes: int | None = None
    ratio: float | None = None  # what the suite compares
    target: str | None = None
    met: bool | None = None
    note: str = ""

    @property
    def floor_seconds(self) -> float | None:
        """The largest floor counts."""
        return max(self.floors.values()) if self.floors else None

    @property
    def limit(self) -> str | None:
        return max(self.floors, key=self.floors.__getitem__) if self.floors else None

    @property
    def fraction(self) -> float | None:
        """The share of the best that the device can do."""
        if not self.seconds or self.floor_seconds is None:
            return None
        return self.floor_seconds / self.seconds


Value = Callable[[Row], float | None]

PICTURES: dict[str, tuple[str, Value]] = {
    "latency": ("time, ms", lambda row: None if row.seconds is None else row.seconds * 1e3),
    "bandwidth": ("fraction of the best possible", lambda row: row.fraction),
    "memory": ("allocated, MB", lambda row: row.peak_bytes / 1e6 if row.peak_bytes else None),
}


@dataclass
class Record:
    path: Path
    facts: dict[str, Any]
    rows: list[Row] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)  # checks, and suites that could not go on

    def add(self, row: Row) -> None:
        self.rows.append(row)
        self.save()

    def save(self) -> None:
        content = {
            **self.facts,
            "skipped": self.skipped,
            "failed": self.failed,
            "rows": [
                {**asdict(row), "limit": row.limit, "fraction": row.fraction} for row in self.rows
            ],
        }
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def facts_of(device: torch.device) -> dict[str, Any]:
    on_gpu = device.type == "cuda"
    name = torch.cuda.get_device_name(device) if on_gpu else platform.processor()
    return {
        "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": _commit(),
        "device": name or platform.machine(),
        "python": platform.python_version(),
        "versions": {package: _version(package) for package in PACKAGES},
        "cuda": torch.version.cuda,
        "cache": "cold" if on_gpu else "warm",
    }


def table(rows: Iterable[Row]) -> str:
    """Worst fraction first, then the rows without one in the order they came."""
    ordered = sorted(rows, key=lambda row: 2.0 if row.fraction is None else row.fraction)
    head = (
        *("suite", "name", "tokens", "H", "D", "block", "time", "p20 to p80"),
        *("floors", "of largest", "ratio", "target", ""),
    )
    lines = [head, *map(_cells, ordered)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def first_line(error: Exception) -> str:
    """The first line of an error's message, or its repr where that is empty."""
    return (str(error).strip() or repr(error)).splitlines()[0][:120]


def _cells(row: Row) -> tuple[str, ...]:
    met = {True: "met", False: "NOT MET", None: ""}[row.met]
    return (
        row.suite,
        row.name,
        f"{row.tokens:,}",
        str(row.num_heads),
        str(row.head_dim),
        "" if row.block_size is None else str(row.block_size),
        "-" if row.seconds is None else f"{row.seconds * 1e3:.4g} ms",
        _spread(row),
        _floors(row),
        "" if row.fraction is None else f"{row.fraction:.1%}",
        "" if row.ratio is None else f"{row.ratio:.3g}",
        row.target or "",
        " ".join(part for part in (met, row.note) if part),
    )


def _spread(row: Row) -> str:
    if row.p20_seconds is None or row.p80_seconds is None:
        return ""
    return f"{row.p20_seconds * 1e3:.4g} to {row.p80_seconds * 1e3:.4g}"


def _floors(row: Row) -> str:
    """Floors in milliseconds, the largest first."""
    largest_first = sorted((row.floors or {}).items(), key=lambda floor: -floor[1])
    return ", ".join(f"{name} {seconds * 1e3:.4g}" for name, seconds in largest_first)


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _commit() -> str:
    """The commit of the working tree; for a plain copy, what LLN_COMMIT says."""
    if told := os.environ.get("LLN_COMMIT"):
        return told
    try:
        command = ["git", "rev-parse", "--short=12", "HEAD"]
        found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return found.stdout.strip()


def draw(rows: Sequence[Row], folder: Path, title: str) -> list[Path]:
    """One PNG file for each picture with data; none where matplotlib is not installed."""
    if find_spec("matplotlib") is None:
        return []
    import_module("matplotlib").use("Agg")
    pyplot = import_module("matplotlib.pyplot")
    drawn = []
    for name, (label, value) in PICTURES.items():
        lines = _lines(rows, value)
        if lines:
            path = folder / f"{name}.png"
            _draw_one(pyplot, lines, label, title, path)
            drawn.append(path)
    return drawn


def _lines(rows: Sequence[Row], value: Value) -> dict[str, list[tuple[int, float]]]:
    points: dict[str, dict[int, float]] = defaultdict(dict)
    for row in rows:
        found = value(row)
        if found is not None:
            points[f"{row.suite}: {row.name}, D {row.head_dim}, b {row.block_size}"][row.tokens] = (
                found
            )
    return {name: sorted(line.items()) for name, line in points.items()}


def _draw_one(
    pyplot: Any, lines: dict[str, list[tuple[int, float]]], label: str, title: str, path: Path
) -> None:
    figure, axes = pyplot.subplots(figsize=(11, 6))
    for name, points in lines.items():
        axes.plot(*zip(*points, strict=True), marker="o", label=name)
    axes.set(xscale="log", xlabel="tokens", ylabel=label, title=title)
    if not label.startswith("fraction"):
        axes.set_yscale("log")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=6, loc="center left", bbox_to_anchor=(1, 0.5))
    figure.savefig(path, dpi=120, bbox_inches="tight")
    pyplot.close(figure)
