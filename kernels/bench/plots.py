"""Pictures of the rows: latency, fraction of the best, and memory, by length."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from kernels.bench.record import Row

Value = Callable[[Row], float | None]

PICTURES: dict[str, tuple[str, Value]] = {
    "latency": ("time, ms", lambda row: None if row.seconds is None else row.seconds * 1e3),
    "bandwidth": ("fraction of the best possible", lambda row: row.fraction),
    "memory": ("allocated, MB", lambda row: row.peak_bytes / 1e6 if row.peak_bytes else None),
}


def draw(rows: Sequence[Row], folder: Path, title: str) -> list[Path]:
    """One PNG file a picture that has anything to show; none where matplotlib is not installed."""
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
