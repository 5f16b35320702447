"""Prepares the process as tests/conftest.py does, whose plugins a borrowed GPU machine lacks."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from engine.platform.process import prepare_process

# Read when torch is loaded.
prepare_process()

import torch  # noqa: E402

if not torch.cuda.is_available():
    # Read by Triton when it is imported.
    os.environ.setdefault("TRITON_INTERPRET", "1")


@pytest.fixture
def tell(capsys: pytest.CaptureFixture[str]) -> Callable[[str], None]:
    """Prints a figure that was measured on the way, also of tests that pass."""

    def print_line(line: str) -> None:
        with capsys.disabled():
            print(f"\n    {line}", end="")

    return print_line
