"""`python -m kernels.bench` on a CPU: the same command as on a GPU, with small shapes."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch
from torch import Tensor

from kernels import attention
from kernels.attention import reference
from kernels.bench import __main__ as command
from kernels.bench import check, measure, peers
from kernels.bench.apart import run_apart
from kernels.bench.clocks import Clocks, parse
from kernels.bench.floors import Ceiling, Work, both_work, floors, forward_work
from kernels.bench.measure import Clock, Inputs, Shape, Times, flusher
from kernels.bench.report import Record, Row, table
from kernels.bench.runs import OURS, Bench, attend
from kernels.bench.served import served_form, sweep
from kernels.bench.suites import SUITES

ROOT = Path(__file__).parents[2]


def run_bench(*arguments: str) -> str:
    command = [sys.executable, "-m", "kernels.bench", "--device", "cpu", *arguments]
    finished = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr[-2000:]
    return finished.stdout


@pytest.mark.long
def test_measures_prints_and_stores(tmp_path: Path) -> None:
    printed = run_bench("softmax", "--seconds-each", "0.001", "--out", str(tmp_path))
    stored: dict[str, Any] = json.loads((tmp_path / "cpu.json").read_text())
    assert {row["suite"] for row in stored["rows"]} == {"softmax"}
    assert all(row["seconds"] > 0 for row in stored["rows"])
    assert stored["versions"]["torch"] == version("torch")  # torch's own may name its CUDA besides
    assert stored["skipped"] == []
    assert "lln_diag_attention" in printed


def ask(patch: pytest.MonkeyPatch, *arguments: str) -> None:
    """The command in this process, which has imported torch."""
    patch.setattr("sys.argv", ["bench", "--device", "cpu", *arguments])
    command.main()


def test_a_suite_for_which_no_time_is_left_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    budget = ("--budget-s", "0", "--seconds-each", "0.001")
    ask(monkeypatch, "softmax", *budget, "--out", str(tmp_path))
    assert "no time left for: softmax" in capsys.readouterr().out
    assert json.loads((tmp_path / "cpu.json").read_text())["skipped"] == ["softmax"]


def small_bench() -> Bench:
    its_clock = Clock(torch.device("cpu"), seconds_each=0.001)
    return Bench(its_clock, Ceiling(1e9, 1e9), torch.float32, large=False)


def measured(suite: str) -> list[str]:
    """The names of a suite's rows, each with a time and the least that it could be."""
    rows = list(SUITES[suite](small_bench()))
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


def test_unknown_suites_are_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        ask(monkeypatch, "forwards")
    assert left.value.code != 0
    assert "no such suite: forwards" in capsys.readouterr().err


@pytest.mark.parametrize(
    "name",
    [
        "NaN stays in its sequence",
        "instruments",
        "softmax, D 32, torch.float32",
        "sinks and maps, D 32, blocks of 16, torch.bfloat16",
        "more numbers than 32 bits count",
    ],
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
    assert check.run_checks(torch.device("cpu")) == list(some)
    assert "FAILED" in capsys.readouterr().out


def test_a_call_whose_process_dies_takes_no_other_with_it() -> None:
    one, none, dies = partial(bool, 1), partial(bool, 0), partial(os._exit, 1)
    calls: list[Callable[[], bool]] = [one, dies, one, none]
    assert run_apart(calls, workers=1) == [True, None, True, False]


def test_nothing_is_measured_on_a_device_that_is_lost(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fails(bench: Bench) -> Iterator[Row]:
        def run() -> object:
            raise RuntimeError("an illegal memory access was encountered")

        yield bench.row("softmax", OURS, Shape(16, 1, 16), run)

    monkeypatch.setitem(SUITES, "softmax", fails)
    monkeypatch.setattr(command, "answers", lambda device: False)
    with pytest.raises(SystemExit, match="has left the device without answers"):
        ask(monkeypatch, "softmax", "short", "--seconds-each", "0.001", "--out", str(tmp_path))
    stored = json.loads((tmp_path / "cpu.json").read_text())
    assert [row["suite"] for row in stored["rows"]] == ["softmax"]


def test_after_a_failed_call_there_is_another_process(tmp_path: Path) -> None:
    (tmp_path / "here").touch()
    moves, looks = partial(os.chdir, tmp_path), partial(os.path.exists, "here")
    assert run_apart([moves, looks], workers=1) == [None, False]  # type: ignore[list-item]


def test_what_is_served_is_measured_in_one_call_and_swept() -> None:
    once, swept = f"{OURS}, as served", "lln_diag_tile, swept by 512"
    assert measured("served") == [once, once, swept]
    shape = Shape(1024, 2, 16, 64)
    inputs = small_bench().inputs(shape)
    tiles = runs_of_a_sweep(inputs)
    whole = attend(inputs, inputs.rows, **served_form(inputs))
    torch.testing.assert_close(torch.cat(tiles), whole, rtol=0, atol=1e-5)


def runs_of_a_sweep(inputs: Inputs) -> list[Tensor]:
    found: Any = sweep(inputs, 256)()
    tiles: list[Tensor] = found
    return tiles


def test_a_flush_leaves_no_line_to_be_written() -> None:
    lines = torch.ones(1024)
    before = lines._version
    flusher(lines)()
    assert lines._version == before


def test_clocks_are_told_or_unknown() -> None:
    assert parse("1980, 1755, 2619\n") == Clocks(1980, 1755, 2619)
    assert parse("1980, [N/A], 2619\n") is None


def test_a_time_is_told_with_its_spread() -> None:
    assert Times.of([5.0, 1.0, 3.0, 2.0, 4.0, 6.0]) == Times(3.5, 2.0, 5.0)


def test_times_are_taken_also_where_a_check_failed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    options = ["--check", "--dtype", "float32", "--seconds-each", "0.001", "--out", str(tmp_path)]
    monkeypatch.setattr(command, "run_checks", lambda _: ["a check"])
    with pytest.raises(SystemExit, match="a check"):
        ask(monkeypatch, "short", *options)
    stored = json.loads((tmp_path / "cpu.json").read_text())
    assert stored["failed"] == ["a check"]
    assert {row["suite"] for row in stored["rows"]} == {"short"}


def test_a_suite_that_fails_is_named_and_the_others_go_on(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def broken(_: Bench) -> Iterator[Row]:
        raise MemoryError
        yield

    bench, record = small_bench(), Record(tmp_path / "cpu.json", {})
    monkeypatch.setitem(SUITES, "long", broken)
    for suite in ("long", "short"):
        command.run_suite(suite, bench, record, math.inf)
    assert record.failed == ["long: MemoryError()"]
    assert {row.suite for row in record.rows} == {"short"}


def test_a_call_that_fails_says_why_in_its_row() -> None:
    def failing() -> None:
        raise AssertionError

    row = small_bench().row("softmax", "a peer", Shape(16, 1, 16), failing)
    assert (row.seconds, row.note) == (None, "failed: AssertionError()")


def test_the_rounding_of_an_answer_is_allowed_also_where_plain_torch_was_lucky() -> None:
    truth = torch.tensor([3.0, 1.0 + 2**-9], dtype=torch.float64)
    rounded = truth.bfloat16()
    lucky = truth.float()
    check.require_as_exact(rounded, lucky, truth, 2, "output")
    with pytest.raises(Exception, match="output: error"):
        check.require_as_exact(rounded + 0.0625, lucky, truth, 2, "output")


class FakeCuda:
    """What a capture asks of torch.cuda, and what has become of the current stream."""

    def __init__(self, *, waits: bool) -> None:
        self.waits, self.captures = waits, 0
        self.mode = self.current = "default"

    Stream = CUDAGraph = MagicMock
    synchronize = MagicMock()

    def current_stream(self) -> MagicMock:
        return MagicMock(spec=["wait_stream"], which=self.current)

    def set_sync_debug_mode(self, mode: str) -> None:
        self.mode = mode

    @contextmanager
    def stream(self, _: object) -> Iterator[None]:
        before = self.current
        try:
            yield
        finally:
            self.current = before

    @contextmanager
    def graph(self, _: object) -> Iterator[None]:
        self.captures, self.current = self.captures + 1, "capturing"  # and stays so on failure
        yield
        self.current = "default"

    def call(self) -> None:
        if self.waits and self.mode == "error":
            raise RuntimeError("called a synchronizing CUDA operation")
        if self.current == "capturing":
            raise RuntimeError("operation not permitted when stream is capturing")


def test_what_waits_for_the_device_is_never_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = FakeCuda(waits=True)
    monkeypatch.setattr(torch, "cuda", cuda)
    assert measure._captured(cuda.call) == cuda.call
    assert (cuda.captures, cuda.mode) == (0, "default")


def test_a_capture_that_fails_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = FakeCuda(waits=False)
    monkeypatch.setattr(torch, "cuda", cuda)
    monkeypatch.setattr(torch, "zeros", lambda *_, **__: None)
    assert measure._captured(cuda.call) == cuda.call
    assert (cuda.captures, cuda.current) == (2, "default")  # the second ends the first


def test_the_formula_is_the_reference() -> None:
    arguments = check.make_arguments(torch.device("cpu"), 16, torch.float32)
    truth = reference.lln_diag_attention(**arguments)
    torch.testing.assert_close(check.plain(arguments).double(), truth, rtol=0, atol=1e-5)
    q, k, v = (arguments[name][:70] for name in "qkv")
    assert peers.diag(q, k, v, 64).shape == (70, 2, 16)


def test_the_worst_fraction_comes_first() -> None:
    shape: dict[str, Any] = {
        "suite": "s",
        "tokens": 1,
        "num_heads": 1,
        "head_dim": 16,
        "dtype": "float32",
    }
    rows = [
        Row(**shape, name="good", seconds=1.0, floors={"bytes": 0.9, "products": 0.1}),
        Row(**shape, name="uncounted", seconds=1.0),
        Row(**shape, name="bad", seconds=1.0, floors={"bytes": 0.2}),
    ]
    names = [line.split()[1] for line in table(rows).splitlines()[1:]]
    assert names == ["bad", "good", "uncounted"]


def test_floors_of_a_shape() -> None:
    shape = Shape(tokens=1000, num_heads=2, head_dim=64, block_size=125)
    rows, ceiling = 2000, Ceiling(bytes_per_s=1.0, flops_per_s=1.0, exponentials_per_s=1.0)
    found = floors(shape, forward_work(shape, maps=True), torch.bfloat16, ceiling)
    assert found == {
        "bytes": rows * 6 * 64 * 2,
        "products": 2 * rows * 64 * (2 * 64 + 2 * 125 + 2 * 64),
        "exponentials": rows * (2 * 64 + 125),
    }
    both = floors(shape, both_work(shape), torch.bfloat16, ceiling)
    assert both["exponentials"] == rows * (5 * 64 + 2 * 125)
    unknown = floors(shape, Work(6), torch.bfloat16, Ceiling(1.0, 1.0))
    assert [*unknown] == ["bytes", "products"]


def test_keys_of_short_last_blocks_count_as_they_are() -> None:
    assert Shape(tokens=200, num_heads=1, head_dim=16, block_size=64, lengths=(100, 100)).keys == (
        (64**2 + 36**2) / 100
    )
