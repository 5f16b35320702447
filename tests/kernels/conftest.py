"""Fixtures of the kernels' tests."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import torch

from kernels.attention.gpu import tiles

# Without it cuBLAS refuses to work under deterministic algorithms, which poisoned_memory asks for.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")


@pytest.fixture
def poisoned_memory() -> Iterator[None]:
    """Fresh buffers hold NaN, which shows where a kernel does not write."""
    # Deterministic mode fills uninitialised memory (test_fresh_buffers_are_poisoned holds it).
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture
def short_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sequences of a few tiles have several pieces, which the interpreter can run in time."""
    monkeypatch.setattr(tiles, "piece_tokens", lambda _: 64)


@pytest.fixture
def two_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short sequences run in two passes, like long ones."""
    monkeypatch.setattr(tiles, "SHORT_TOKENS", -1)
