"""Where there is no NVIDIA GPU, Triton's kernels run through its interpreter."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import torch

if not torch.cuda.is_available():
    # Triton reads this when a kernel is defined, so it comes before any import of one.
    os.environ.setdefault("TRITON_INTERPRET", "1")


@pytest.fixture
def poisoned_memory() -> Iterator[None]:
    """Fresh buffers hold NaN, so that what a kernel forgets to write shows."""
    torch.use_deterministic_algorithms(True)  # with torch.utils.deterministic's default: fill
    yield
    torch.use_deterministic_algorithms(False)
