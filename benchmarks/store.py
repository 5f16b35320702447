"""Results of a suite: stored as JSON with what they were measured on, shown as a Markdown table.

`table` prints rows as they are measured. `stored_results` turns stored files into the tables of
benchmarks/README.md, which tools/write_docs.py writes.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median
from typing import Any

import torch

from benchmarks.rows import Row
from benchmarks.workbench import Workbench
from service.benchmarks.job import cpu_name

ROOT = Path(__file__).resolve().parent.parent
HEAD = ("case", "measured", "times (median)", "value", "single turns", "target", "met")
_PACKAGES = (
    *("torch", "numpy", "tokenizers", "transformers", "sentence-transformers"),
    *("onnxruntime", "openvino", "nncf", "torchao"),
)
_PACKAGES_SHOWN = ("torch", "sentence-transformers", "onnxruntime", "openvino")


def store(suite: str, rows: Sequence[Row], bench: Workbench, folder: Path) -> Path:
    """Writes one suite's results in place of earlier ones."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{suite}.json"
    content = {
        "suite": suite,
        "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit(),
        "machine": machine(),
        "versions": {name: _version(name) for name in _PACKAGES},
        "threads": bench.threads,
        "model": _model(bench),
        "rows": [_as_json(row) for row in rows],
    }
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    return path


def commit() -> str:
    """The current commit, with "+changes" where measured files differ from it.

    A plain copy of the tree has its commit in LLN_COMMIT.
    """
    head = _git("rev-parse", "--short=12", "HEAD")
    if not head:
        return os.environ.get("LLN_COMMIT", "unknown")
    changed = _git(
        "status", "--porcelain", "--", "kernels", "engine", "service", "benchmarks/**.py"
    )
    return f"{head}+changes" if changed else head


def machine() -> dict[str, Any]:
    return {
        "cpu": cpu_name(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "cores": os.cpu_count(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "system": platform.platform(terse=True),
        "python": platform.python_version(),
        "load_average": os.getloadavg(),
    }


def _model(bench: Workbench) -> Mapping[str, Any]:
    info, calibration = bench.lln_diag.info, bench.lln_diag.model.calibration
    assert calibration is not None, "an LLN+Diag model has a calibration"
    return {
        "name": bench.softmax.info.name,
        "weights_sha256": info.revision,
        "calibration_sha256": info.calibration,
        "block_size": calibration.block_size,
        "long_block": calibration.long_block and calibration.long_block._asdict(),
        "num_sinks": calibration.num_sinks,
        "dtype": info.dtype,
        "device": info.device,
    }


def _as_json(row: Row) -> dict[str, Any]:
    target = str(row.target) if row.target else None
    return {**asdict(row), "target": target, "met": row.is_met}


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _git(*arguments: str) -> str:
    try:
        finished = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True)
    except OSError:
        return ""
    return finished.stdout.strip()


def table(rows: Sequence[Row]) -> str:
    """Rows as a Markdown table, aligned for the terminal too."""
    lines = [HEAD, *(_cells(_as_json(row), missed="NO") for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEAD))]
    rule = tuple("-" * width for width in widths)
    padded = (
        [cell.ljust(width) for cell, width in zip(line, widths, strict=True)]
        for line in (HEAD, rule, *lines[1:])
    )
    return "\n".join(map(_line, padded))


def stored_results(folder: Path) -> str:
    """Every stored suite as Markdown."""
    paths = sorted(folder.glob("*.json"))
    return "\n\n".join(_stored_suite(json.loads(path.read_text())) for path in paths)


def _stored_suite(stored: Mapping[str, Any]) -> str:
    lines = [HEAD, ("---",) * len(HEAD), *(_cells(row, missed="**no**") for row in stored["rows"])]
    title = f"**{stored['suite']}** ({', '.join(_measured_on(stored))})"
    note = f"\n\n{stored['note']}" if stored.get("note") else ""
    return f"{title}\n\n" + "\n".join(map(_line, lines)) + note


def _measured_on(stored: Mapping[str, Any]) -> Iterator[str]:
    machine, model, versions = stored["machine"], stored["model"], stored["versions"]
    if model["device"] == "cpu":
        yield f"{machine['cpu']}, {machine['cpu_capability']}, {stored['threads']} threads"
    else:
        yield f"{machine['gpu']}, {model['dtype']}"
    yield from (f"{name} {versions[name]}" for name in _PACKAGES_SHOWN if versions.get(name))
    long = model.get("long_block")
    beyond = f" ({long['size']} beyond {long['beyond']:,} tokens)" if long else ""
    yield f"blocks of {model['block_size']}{beyond}"
    yield f"calibration `{model['calibration_sha256'][:8]}`"
    yield f"commit `{stored['commit']}`, {stored['measured_at'][:10]}"


def _cells(row: Mapping[str, Any], *, missed: str) -> tuple[str, ...]:
    """The cells of a row as it is stored."""
    show = _show_ratio if row["seconds"] else _show_number
    return (
        row["case"],
        row["measure"],
        " / ".join(_show_time(median(turns)) for turns in row["seconds"].values()),
        show(row["value"]),
        " to ".join(map(show, row["spread"] or ())),
        row["target"] or "",
        {True: "yes", False: missed, None: ""}[row["met"]],
    )


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _show_time(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1e3:.3g} ms"


def _show_number(value: float) -> str:
    """Eight decimals of a cosine near 1."""
    return f"{value:.8f}" if 0.999 < value < 1 else _show_ratio(value)


def _show_ratio(value: float) -> str:
    """Two decimals, four below 1."""
    return f"{value:.4f}" if abs(value) <= 1 else f"{value:.2f}"
