"""Stored results as Markdown, for benchmarks/README.md."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.table import HEAD, number, times

_HEAD = f"| {' | '.join(HEAD)} |\n" + "| --- " * len(HEAD) + "|"
_PACKAGES = ("torch", "sentence-transformers", "onnxruntime")


def stored_results(folder: Path) -> str:
    """Every suite that has been stored."""
    return "\n\n".join(
        _suite(json.loads(path.read_text())) for path in sorted(folder.glob("*.json"))
    )


def _suite(stored: Mapping[str, Any]) -> str:
    rows = "\n".join(_row(row) for row in stored["rows"])
    return f"**{stored['suite']}** ({', '.join(_measured_on(stored))})\n\n{_HEAD}\n{rows}"


def _measured_on(stored: Mapping[str, Any]) -> Iterator[str]:
    machine, model = stored["machine"], stored["model"]
    yield f"{machine['cpu']}, {machine['cpu_capability']}, {stored['threads']} threads"
    yield from (
        f"{name} {stored['versions'][name]}" for name in _PACKAGES if stored["versions"].get(name)
    )
    long = model.get("long_block")
    beyond = f" ({long['size']} beyond {long['beyond']:,} tokens)" if long else ""
    yield f"blocks of {model['block_size']}{beyond}"
    yield f"calibration `{model['calibration_sha256'][:8]}`"
    yield f"commit `{stored['commit']}`, {stored['measured_at'][:10]}"


def _row(row: Mapping[str, Any]) -> str:
    spread = " to ".join(map(number, row["spread"])) if row["spread"] else ""
    met = {True: "yes", False: "**no**", None: ""}[row["met"]]
    value, target = number(row["value"]), row["target"] or ""
    cells = (row["case"], row["measure"], times(row["seconds"]), value, spread, target, met)
    return f"| {' | '.join(cells)} |"
