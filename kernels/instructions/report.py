"""The counts as they are stored, and as tables of a document. Reading them needs no Triton."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
STORED = ROOT / "benchmarks" / "results" / "kernels" / "instructions.json"
FIRST = STORED.with_name("instructions-first.json")
"""The first counts that were stored, before anything was done about them."""

FLOORS = ("bytes_ps", "issue_ps", "exponentials_ps", "tensor_ps")

Stored = Mapping[str, Any]


def read(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return content


def rows_by_name(stored: Stored) -> dict[str, Stored]:
    return {row["name"]: row for row in stored["rows"]}


def operations_table() -> str:
    """What a whole pass may reach of the bandwidth of a copy, now and when it was first counted."""
    now, first = rows_by_name(read(STORED)), rows_by_name(read(FIRST))
    lines = []
    for form in _forms(now.values()):
        for name, parts in (("forward", _forward(form)), ("backward", _backward(form))):
            cells = [_operation(parts, rows) for rows in (first, now)]
            lines.append(
                [name, form, *(cell for pair in zip(*cells, strict=True) for cell in pair)]
            )
    head = (
        *("pass", "form", "instructions, first", "now"),
        *("of copy bandwidth at most, first", "now"),
    )
    return _table(head, lines)


def launches_table() -> str:
    lines = [
        [
            row["name"],
            *(f"{row[name]:,.0f}" for name in ("instructions", "exponentials", "tensor_flops")),
            *(f"{row['bytes']:,.0f}", str(row["registers"]), str(row["stack_bytes"])),
            f"{row['resident_warps']} of 64",
            *(f"{row[name]:,.0f}" for name in FLOORS),
            f"{_share([row]):.0%}",
        ]
        for row in read(STORED)["rows"]
    ]
    head = (
        *("launch", "instructions", "exponentials", "tensor-core operations", "bytes"),
        *("registers", "stack, bytes", "warps"),
        *("ps: bytes", "issue", "exponentials", "tensor cores", "bytes of the largest"),
    )
    return _table(head, lines)


def _forms(rows: Iterable[Stored]) -> list[str]:
    return [row["form"] for row in rows if row["part"] == "output"]


def _forward(form: str) -> list[str]:
    merges = f"merge of groups, {_head(form)}", f"merge, {_head(form)}"
    return [f"state, {_without_block(form)}", *merges, f"output, {form}"]


def _backward(form: str) -> list[str]:
    first = f"state's gradient, {_without_block(form)}"
    return [first, f"rows' sums, {form}", f"rows' gradient, {form}"]


def _head(form: str) -> str:
    return form.partition(",")[0]


def _without_block(form: str) -> str:
    return f"{_head(form)}, maps" if "maps" in form else _head(form)


def _operation(parts: Sequence[str], rows: Mapping[str, Stored]) -> tuple[str, str]:
    present = [rows[part] for part in parts if part in rows]
    return f"{sum(row['instructions'] for row in present):,.0f}", f"{_share(present):.0%}"


def _share(rows: Sequence[Stored]) -> float:
    """The time of the bytes as a part of the largest floors, one launch after the other."""
    return float(sum(row["bytes_ps"] for row in rows)) / sum(_floor(row) for row in rows)


def _floor(row: Stored) -> float:
    return max(float(row[name]) for name in FLOORS)


def _table(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(line)} |" for line in (head, ["---"] * len(head), *lines))
