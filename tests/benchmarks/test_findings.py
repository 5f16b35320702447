"""`python -m benchmarks`: a target that is missed is told of, with what else was seen."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks import __main__ as command
from benchmarks.plan import Plan
from benchmarks.row import Row, Target
from benchmarks.workbench import Workbench

ROOT = Path(__file__).parents[2]


def two_rows(bench: Workbench, plan: Plan) -> Iterator[Row]:
    target = Target("<=", 2)
    yield Row(case="a", measure="of one", value=1, target=target, seconds={}, note="nobody reads")
    yield Row(case="b", measure="of two", value=3, target=target, seconds={}, note="500 x 3")


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setitem(vars(command)["SUITES"], "short", two_rows)
    monkeypatch.setattr(sys, "argv", ["benchmarks", "short", "--quick", *arguments])
    return command.main()


def test_what_was_missed_is_said_in_words(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "--check") == 1
    told = capsys.readouterr().out
    assert told.endswith("Targets missed: 1\nshort: b: of two: 3, wanted <= 2 (500 x 3)\n")
    assert "nobody reads" not in told


def test_without_check_a_missed_target_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(monkeypatch) == 0


def test_idle_threads_sleep_for_everyone_who_is_measured() -> None:
    code = "import benchmarks, os, sys; print('torch' in sys.modules, *os.environ)"
    finished = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env={}, capture_output=True, text=True, check=True
    )
    torch_is_loaded, *environment = finished.stdout.split()
    assert torch_is_loaded == "False"
    assert "GOMP_SPINCOUNT" in environment
