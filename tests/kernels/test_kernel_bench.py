"""`python -m kernels.bench` on a CPU: the same command as on a GPU, with small shapes."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from kernels import attention
from kernels.attention import reference
from kernels.bench import check, formula
from kernels.bench.clock import Ceiling, Clock
from kernels.bench.record import Row, table
from kernels.bench.shapes import Shape
from kernels.bench.suites import OURS, SUITES, Bench

ROOT = Path(__file__).parents[2]


def run_bench(*arguments: str) -> str:
    command = [sys.executable, "-m", "kernels.bench", "--device", "cpu", *arguments]
    finished = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr[-2000:]
    return finished.stdout


def test_measures_prints_and_stores(tmp_path: Path) -> None:
    printed = run_bench("softmax", "short", "--seconds-each", "0.001", "--out", str(tmp_path))
    stored: dict[str, Any] = json.loads((tmp_path / "cpu.json").read_text())
    assert {row["suite"] for row in stored["rows"]} == {"softmax", "short"}
    assert all(row["seconds"] > 0 for row in stored["rows"])
    assert stored["versions"]["torch"] == version("torch")  # torch's own may name its CUDA besides
    assert stored["skipped"] == []
    assert "lln_diag_attention" in printed


def test_a_suite_for_which_no_time_is_left_is_named(tmp_path: Path) -> None:
    printed = run_bench("softmax", "--budget-s", "0", "--out", str(tmp_path))
    assert "no time left for: softmax" in printed
    assert json.loads((tmp_path / "cpu.json").read_text())["skipped"] == ["softmax"]


def measured(suite: str) -> list[str]:
    """The names of a suite's rows, each with a time and the least that it could be."""
    clock = Clock(torch.device("cpu"), seconds_each=0.001)
    bench = Bench(clock, Ceiling(1e9, 1e9), torch.float32, large=False)
    rows = list(SUITES[suite](bench))
    assert [row for row in rows if not row.fraction] == []
    return [row.name for row in rows]


def test_every_operation_is_measured() -> None:
    operations = {name for name in attention.__all__ if name.startswith("lln_")}
    operations |= {name for name in attention.__all__ if name.endswith("attention")}
    others = {name.partition(",")[0] for name in measured("parts")}
    assert {*others, OURS} == {*operations, "row_statistics", "moments"}


def test_every_form_is_measured_there_and_back() -> None:
    forms = [f"{OURS}, {form}" for form in ("sinks", "gate", "maps")]
    ways = ("", ", forward and backward")
    assert measured("forms") == [f"{form}{way}" for form in forms for way in ways]


def test_unknown_suites_are_refused() -> None:
    command = [sys.executable, "-m", "kernels.bench", "forwards"]
    finished = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert finished.returncode != 0
    assert "no such suite: forwards" in finished.stderr


@pytest.mark.parametrize(
    "name", ["NaN stays in its sequence", "instruments", "softmax, D 32, torch.float32"]
)
def test_checks_pass(name: str) -> None:
    dict(check.checks(torch.device("cpu")))[name]()


def test_checks_can_fail(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def wrong(q: Tensor, *_: Tensor, **__: object) -> Tensor:
        return q

    monkeypatch.setattr(check, "lln_diag_attention", wrong)
    every = check.checks
    some = ("forward, D 16, torch.float32", "backward, D 32, torch.float32")
    monkeypatch.setattr(
        check, "checks", lambda device: [pair for pair in every(device) if pair[0] in some]
    )
    assert check.run_checks(torch.device("cpu")) == 2
    assert "FAILED" in capsys.readouterr().out


def test_the_formula_is_the_reference() -> None:
    arguments = check.make_arguments(torch.device("cpu"), 16, torch.float32)
    truth = reference.lln_diag_attention(**arguments)
    torch.testing.assert_close(check.plain(arguments).double(), truth, rtol=0, atol=1e-5)
    q, k, v = (arguments[name][:70] for name in "qkv")
    assert formula.diag(q, k, v, 64).shape == (70, 2, 16)


def test_the_worst_fraction_comes_first() -> None:
    shape: dict[str, Any] = {
        "suite": "s",
        "tokens": 1,
        "num_heads": 1,
        "head_dim": 16,
        "dtype": "float32",
    }
    rows = [
        Row(**shape, name="good", seconds=1.0, floor_seconds=0.9),
        Row(**shape, name="uncounted", seconds=1.0),
        Row(**shape, name="bad", seconds=1.0, floor_seconds=0.2),
    ]
    names = [line.split()[1] for line in table(rows).splitlines()[1:]]
    assert names == ["bad", "good", "uncounted"]


def test_bytes_and_arithmetic_of_a_shape() -> None:
    shape = Shape(tokens=1000, num_heads=2, head_dim=64, block_size=128)
    assert shape.bytes_of(6, torch.bfloat16) == 6 * 1000 * 2 * 64 * 2
    assert shape.forward_flops == 1000 * 2 * (4 * 64 * 64 + 4 * 128 * 64)
