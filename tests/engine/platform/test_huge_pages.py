"""Large tensors ask for huge pages where the system gives them to those who ask."""

from __future__ import annotations

import mmap
from pathlib import Path

import pytest
import torch

from engine.platform.memory import on_huge_pages

_SETTING = Path("/sys/kernel/mm/transparent_hugepage/enabled")
_MAPPINGS = Path("/proc/self/smaps")
MIB = 1 << 20


def flags_at(address: int) -> list[str]:
    """The system's flags of the mapping that holds this address."""
    inside = False
    for line in _MAPPINGS.read_text().splitlines():
        first, _, rest = line.partition(" ")
        if first == "VmFlags:" and inside:
            return rest.split()
        start, dash, end = first.partition("-")
        if dash:
            inside = int(start, 16) <= address < int(end, 16)
    raise LookupError(f"no mapping holds {address:#x}")


def gives_huge_pages() -> bool:
    return (
        _SETTING.exists()
        and "[never]" not in _SETTING.read_text()
        and "VmFlags:" in _MAPPINGS.read_text()
    )


@pytest.mark.skipif(not gives_huge_pages(), reason="no huge pages here")
def test_a_large_tensor_asks_for_huge_pages() -> None:
    # Whether it gets them depends on how much of the machine's memory is in one piece; that it
    # has asked does not ("hg" in the system's flags). The mapping is new: a freed one keeps them.
    memory = mmap.mmap(-1, 64 * MIB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    tensor = torch.frombuffer(memory, dtype=torch.uint8)
    middle = tensor.data_ptr() + 32 * MIB
    assert "hg" not in flags_at(middle)
    on_huge_pages(tensor)
    assert "hg" in flags_at(middle)
    assert int(tensor.fill_(1).sum()) == 64 * MIB


@pytest.mark.parametrize("size", [0, 1, 4096, 3 * MIB])
def test_any_size_will_do(size: int) -> None:
    tensor = torch.arange(size, dtype=torch.float32)
    assert on_huge_pages(tensor) is tensor
    assert tensor.equal(torch.arange(size, dtype=torch.float32))
