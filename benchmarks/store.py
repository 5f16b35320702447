"""Results on disk: raw figures together with what they were measured on."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from benchmarks.row import Row
from benchmarks.workbench import Workbench
from service.benchmarks.machine import cpu_name

ROOT = Path(__file__).resolve().parent.parent
_PACKAGES = ("torch", "numpy", "tokenizers", "transformers", "sentence-transformers", "onnxruntime")


def store(suite: str, rows: Sequence[Row], bench: Workbench, folder: Path) -> Path:
    """Writes one suite's results, replacing earlier ones."""
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
        "rows": [_row(row) for row in rows],
    }
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    return path


def commit() -> str:
    """The commit at hand, with "+changes" where measured files differ from it."""
    head = _git("rev-parse", "--short=12", "HEAD")
    if not head:
        return "unknown"
    changed = _git(
        "status", "--porcelain", "--", "kernels", "engine", "service", "benchmarks/**.py"
    )
    return f"{head}+changes" if changed else head


def machine() -> dict[str, Any]:
    return {
        "cpu": cpu_name(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "cores": os.cpu_count(),
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


def _row(row: Row) -> dict[str, Any]:
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
