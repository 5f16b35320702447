"""`lln bench`: what it keeps of a run that does not end well."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

from tests.service.processes import clean_environment


def test_rows_outlive_ctrl_c(tmp_path: Path) -> None:
    plan = ("--lengths", "32,16384", "--attentions", "lln_diag", "--repeats", "20")
    command = [sys.executable, "-m", "service.cli", "bench", *plan, "--out", str(tmp_path)]
    with subprocess.Popen(
        command, env=clean_environment(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        assert process.stdout is not None
        assert b"tokens_per_s" in process.stdout.readline()
        process.stdout.readline()  # the first row
        process.send_signal(signal.SIGINT)
        assert process.wait(120) == 130
    run = json.loads((tmp_path / "encoder.json").read_text())
    assert (run["state"], run["num_rows"]) == ("interrupted", 2)
    assert [row["tokens"] for row in run["rows"]] == [32]
    assert (tmp_path / "encoder.csv").read_text().count("\n") == 2
