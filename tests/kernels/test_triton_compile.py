"""The Triton kernels compile ahead of time for the known GPUs and fit their shared memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import product
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("triton")

SCRIPT = Path(__file__).with_name("compile_kernels.py")
ROOT = Path(__file__).parents[2]
# What one program may use, by compute capability: A100; L4 and L40; H100 and H200.
SHARED_KIB = {80: 163, 89: 99, 90: 227}
# ptxas keeps a little apart even where nothing else is spilled.
SPILL_BYTES = 64


def compile_kernels(which: str, cache: Path) -> list[dict[str, Any]]:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment |= {"TRITON_CACHE_DIR": str(cache), "PYTHONPATH": str(ROOT)}
    run = subprocess.run(
        [sys.executable, str(SCRIPT), which],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-4000:]
    return [json.loads(line) for line in run.stdout.splitlines()]


def check(builds: list[dict[str, Any]]) -> None:
    forms = {"state", "tiles of a block", "one tile a block", "whole sequences"}
    compiled = {(build["form"], build["capability"]) for build in builds}
    assert {form for form, _ in compiled} >= forms
    assert compiled == set(product({form for form, _ in compiled}, SHARED_KIB))
    too_big = [
        build for build in builds if build["shared_bytes"] > 1024 * SHARED_KIB[build["capability"]]
    ]
    assert not too_big
    assert not {build["name"]: build["wrong"] for build in builds if build["wrong"]}
    # Other builds may spill: they are not the fast path, and float32 multiplies three times.
    fast = [b for b in builds if b["dtype"] == "torch.bfloat16" and b["capability"] == 90]
    assert not [build for build in fast if build["spilled_bytes"] > SPILL_BYTES]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_kernels_compile_and_fit(tmp_path: Path) -> None:
    check(compile_kernels("usual", tmp_path))  # "every" takes minutes, and is for new tile sizes
