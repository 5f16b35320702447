"""Rows as a Markdown table, aligned for the terminal too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

from benchmarks.row import Row

HEAD = ("case", "measured", "times (median)", "value", "single turns", "target", "met")


def table(rows: Sequence[Row]) -> str:
    cells = [HEAD, *map(_cells, rows)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(HEAD))]
    rule = tuple("-" * width for width in widths)
    return "\n".join(_line(line, widths) for line in (HEAD, rule, *cells[1:]))


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    padded = (cell.ljust(width) for cell, width in zip(cells, widths, strict=True))
    return f"| {' | '.join(padded)} |"


def _cells(row: Row) -> tuple[str, ...]:
    spread = " to ".join(number(value) for value in row.spread) if row.spread else ""
    met = {True: "yes", False: "NO", None: ""}[row.is_met]
    target = str(row.target) if row.target else ""
    return (row.case, row.measure, times(row.seconds), number(row.value), spread, target, met)


def times(seconds: Mapping[str, Sequence[float]]) -> str:
    """The median of everyone's turns."""
    return " / ".join(_time(median(turns)) for turns in seconds.values())


def _time(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1e3:.3g} ms"


def number(value: float) -> str:
    """Two decimals, and as many nines as a cosine has."""
    if 0.999 < value < 1:
        return f"{value:.8f}"
    return f"{value:.4f}" if abs(value) <= 1 else f"{value:.2f}"
