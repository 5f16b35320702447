"""What the kernels' tests share."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import torch

from kernels.attention import triton_tiles

# Without it cuBLAS refuses to work under deterministic algorithms, which poisoned_memory asks for.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")


@pytest.fixture
def poisoned_memory() -> Iterator[None]:
    """Fresh buffers hold NaN, so that what a kernel forgets to write shows."""
    # Deterministic mode fills uninitialised memory (test_fresh_buffers_are_poisoned holds it).
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture
def short_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sequences of a few tiles have several pieces, which an interpreter can do in time."""
    monkeypatch.setattr(triton_tiles, "piece_tokens", lambda _: 64)


@pytest.fixture
def two_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short sequences take the way of long ones."""
    monkeypatch.setattr(triton_tiles, "SHORT_TOKENS", -1)
