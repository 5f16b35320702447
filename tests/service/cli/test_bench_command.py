"""`lln bench`: what it keeps of a run that does not end well."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest

from service.cli.__main__ import main
from tests.service.processes import ForkedProcess, clean_environment


@pytest.mark.long
def test_rows_outlive_ctrl_c(tmp_path: Path) -> None:
    plan = ("--lengths", "32,8192", "--attentions", "lln_diag", "--repeats", "20")
    printed = tmp_path / "printed"
    printed.touch()
    process = ForkedProcess(
        ["bench", *plan, "--out", str(tmp_path)],
        clean_environment(),
        stdout=printed,
        stderr=Path(os.devnull),
    )
    while process.poll() is None and printed.read_text().count("\n") < 2:
        time.sleep(0.01)
    assert "tokens_per_s" in printed.read_text().splitlines()[0]
    process.send_signal(signal.SIGINT)  # after the first row
    assert process.wait(120) == 130
    run = json.loads((tmp_path / "encoder.json").read_text())
    assert (run["state"], run["num_rows"]) == ("interrupted", 2)
    assert [row["tokens"] for row in run["rows"]] == [32]
    assert (tmp_path / "encoder.csv").read_text().count("\n") == 2


def test_a_folder_that_cannot_be_is_told_before_anything_is_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    out = tmp_path / "file" / "results"
    plan = ("--suite", "attention", "--lengths", "32", "--attentions", "lln_diag")
    assert main(["bench", *plan, "--out", str(out)]) == 1
    printed = capsys.readouterr()
    assert printed.err == f"lln: {out}: Not a directory\n"
    assert printed.out == ""


def test_a_full_disk_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "attention.json").symlink_to("/dev/full")
    plan = ("--suite", "attention", "--lengths", "32", "--attentions", "lln_diag")
    assert main(["bench", *plan, "--repeats", "1", "--out", str(tmp_path)]) == 1
    assert capsys.readouterr().err == f"lln: {tmp_path}: No space left on device\n"
