"""What an idle process gives back."""

from __future__ import annotations

import errno
import sys

import pytest
import torch

from engine.platform import idle_memory
from engine.platform.idle_memory import IdleMemory
from engine.platform.memory import resident_bytes
from engine.platform.process import trim_heap

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="reads the resident memory of Linux"
)
_BLOCK = 2 << 20
_NUM_BLOCKS = 64


@pytest.fixture(autouse=True)
def trimmed() -> None:
    """Blocks would otherwise lie where earlier tests have left room, and nothing would grow."""
    trim_heap()


def test_memory_between_what_is_kept_goes_back() -> None:
    memory = IdleMemory()
    blocks, kept = [], []
    for _ in range(_NUM_BLOCKS):
        blocks.append(torch.ones(_BLOCK // 4))
        kept.append(torch.ones(1024))
    with_blocks = resident_bytes()
    blocks.clear()
    memory.give_back()
    assert resident_bytes() < with_blocks - _NUM_BLOCKS * _BLOCK // 2
    assert all(one.sum() == 1024 for one in kept)


@pytest.fixture
def searches(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    found: list[int] = []
    monkeypatch.setattr(idle_memory, "trim_heap", lambda: found.append(1))
    return found


def test_the_heap_is_not_searched_for_little(searches: list[int]) -> None:
    memory = IdleMemory()
    memory.give_back()
    assert len(searches) == 1, "what loading left is not known before"
    memory.give_back()
    assert len(searches) == 1
    held = torch.ones(_NUM_BLOCKS * _BLOCK // 4)
    memory.give_back()
    memory.give_back()
    assert len(searches) == 2, "what is still held is known after the search"
    del held


def test_a_process_without_a_descriptor_gives_back_later(
    searches: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def none_left() -> int:
        raise OSError(errno.EMFILE, "Too many open files", "/proc/self/status")

    memory = IdleMemory()
    with monkeypatch.context() as patched:
        patched.setattr(idle_memory, "_resident", none_left)
        memory.give_back()
    assert not searches
    memory.give_back()
    assert searches


def test_a_process_that_has_shrunk_is_searched_as_early(
    searches: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    held = [500, 400, 440, 480, 470]  # MiB
    monkeypatch.setattr(idle_memory, "_resident", lambda: held[0] << 20)
    memory = IdleMemory()
    found = []
    while held:
        memory.give_back()
        found.append(len(searches))
        del held[0]
    assert found == [1, 1, 1, 2, 2]
