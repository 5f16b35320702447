"""Large tensors are on huge pages where the machine has them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from engine.platform.memory import on_huge_pages

_SETTING = Path("/sys/kernel/mm/transparent_hugepage/enabled")
MIB = 1 << 20


def huge_bytes() -> int:
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    (line,) = [line for line in lines if line.startswith("AnonHugePages")]
    return int(line.split()[1]) * 1024


@pytest.mark.skipif(
    not _SETTING.exists() or "[never]" in _SETTING.read_text(), reason="no huge pages here"
)
def test_a_large_tensor_is_on_huge_pages() -> None:
    before = huge_bytes()
    tensor = on_huge_pages(torch.empty(64 * MIB, dtype=torch.uint8)).fill_(1)
    # The system gives what it has; half of it is far more than comes by chance.
    assert huge_bytes() - before > 32 * MIB
    assert int(tensor.sum()) == 64 * MIB


@pytest.mark.parametrize("size", [0, 1, 4096, 3 * MIB])
def test_any_size_will_do(size: int) -> None:
    tensor = torch.arange(size, dtype=torch.float32)
    assert on_huge_pages(tensor) is tensor
    assert tensor.equal(torch.arange(size, dtype=torch.float32))
