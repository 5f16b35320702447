"""Benchmarks: missed targets are reported in words, and idle threads sleep."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from benchmarks.rows import Row, Target

ROOT = Path(__file__).parents[2]
TARGET = Target("<=", 2)


def test_what_was_missed_is_said_in_words() -> None:
    row = Row(case="b", measure="of two", value=3, target=TARGET, seconds={}, note="500 x 3")
    assert row.is_met is False
    assert row.verdict == "b: of two: 3, wanted <= 2 (500 x 3)"


def test_what_was_met_and_what_has_no_target_are_no_findings() -> None:
    assert Row(case="a", measure="of one", value=1, target=TARGET, seconds={}).is_met is True
    assert Row(case="a", measure="of one", value=1, target=None, seconds={}).is_met is None


def test_idle_threads_sleep_for_everyone_who_is_measured() -> None:
    code = "import benchmarks, os, sys; print('torch' in sys.modules, *os.environ)"
    finished = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env={}, capture_output=True, text=True, check=True
    )
    torch_is_loaded, *environment = finished.stdout.split()
    assert torch_is_loaded == "False"
    assert "GOMP_SPINCOUNT" in environment
