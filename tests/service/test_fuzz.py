"""A short run of `make fuzz`: hundreds of requests that nobody would send, over both protocols."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_fuzz() -> None:
    command = [sys.executable, "-m", "tests.fuzz", "--http-examples", "3", "--grpc-cases", "300"]
    finished = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=170)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    sent = re.search(r"^(\d+) requests over HTTP$", finished.stdout, re.MULTILINE)
    assert sent is not None
    assert int(sent[1]) >= 300
    assert "300 calls over gRPC, 0 failures" in finished.stdout
