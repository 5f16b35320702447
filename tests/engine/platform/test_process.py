"""What a server does with Python's collector and glibc's heap while it loads and afterwards."""

from __future__ import annotations

import gc
import sys

import pytest
import torch

from engine.platform.memory import resident_bytes
from engine.platform.process import (
    allocator_environment,
    freeze_loaded_objects,
    loading,
    trim_heap,
)
from tests.engine.limited_processes import printed_by

on_linux = pytest.mark.skipif(sys.platform != "linux", reason="reads the resident memory of Linux")


def test_frozen_objects_are_not_collected_again() -> None:
    class Node:
        def __init__(self) -> None:
            self.itself = self

    frozen = gc.get_freeze_count()
    objects = [Node() for _ in range(1000)]
    freeze_loaded_objects()
    visited = {id(one) for one in gc.get_objects()}
    assert gc.get_freeze_count() >= frozen + len(objects)
    assert not visited & {id(one) for one in objects}


@pytest.mark.parametrize("error", [None, ValueError])
def test_loading_is_not_interrupted_and_leaves_python_as_it_was(
    error: type[Exception] | None,
) -> None:
    turn_s, frozen = sys.getswitchinterval(), gc.get_freeze_count()
    try:
        with loading():
            made = [[number] for number in range(1000)]
            assert not gc.isenabled()
            assert sys.getswitchinterval() < turn_s
            if error is not None:
                raise error
    except ValueError:
        pass
    assert gc.isenabled()
    assert sys.getswitchinterval() == pytest.approx(turn_s)
    assert gc.get_freeze_count() >= frozen + len(made)


@on_linux
def test_freed_memory_returns_to_the_system() -> None:
    size = 64 << 20  # below what glibc maps by itself
    used = torch.ones(size // 4)
    with_it = resident_bytes()
    del used
    trim_heap()
    assert resident_bytes() < with_it - size // 2


@on_linux
@pytest.mark.parametrize(
    "first",
    ["prepare_process()", "from service.cli.__main__ import main; main(['evaluate', '--pairs'])"],
)
def test_numpy_begins_no_threads(first: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    code = (
        "import os\n"
        "from engine.platform.process import prepare_process\n"
        "os.sched_setaffinity(0, range(os.cpu_count()))\n"
        f"{first}\n"
        "import numpy as np\n"
        "np.linalg.eigvals(np.eye(64))\n"
        "print(len(os.listdir('/proc/self/task')))\n"
    )
    assert printed_by(code) == ["1"]


HAS_MKL = torch.backends.mkl.is_available()  # type: ignore[no-untyped-call]


@pytest.mark.long
@on_linux
@pytest.mark.skipif(not HAS_MKL, reason="torch has no oneMKL here")
def test_products_keep_no_buffers() -> None:
    def grown(prepared: str) -> int:
        code = (
            "import os\n"
            "from engine.platform.process import prepare_process, trim_heap\n"
            f"prepare_process()\n{prepared}\n"
            "import torch\n"
            "from engine.platform.memory import resident_bytes\n"
            "def multiply(rows):\n"
            "    one = torch.ones\n"
            "    for width in (1152, 1536):\n"
            "        torch.addmm(one(width), one(rows, 384), one(384, width))\n"
            "    trim_heap()\n"
            "    return resident_bytes()\n"
            "few = multiply(4)\n"
            "print(multiply(488) - few)\n"
        )
        [printed] = printed_by(code)
        return int(printed)

    # Libraries' pages count in both.
    with_buffers = grown("os.environ.pop('MKL_DISABLE_FAST_MM', None)")
    assert with_buffers - grown("") > 2 << 20


def grown_arenas(environment: dict[str, str]) -> int:
    """Arenas of a process that has threads before it is prepared, after more of them."""
    code = (
        "import ctypes, os, re, tempfile\n"
        "from threading import Barrier, Thread\n"
        "from engine.platform.process import prepare_process\n"
        "together = Barrier(33)\n"
        "libc = ctypes.CDLL(None)\n"
        "libc.malloc.restype = ctypes.c_void_p\n"
        "def allocate():\n"
        "    libc.malloc(ctypes.c_size_t(1 << 16))\n"
        "    together.wait()\n"
        "def run():\n"
        "    threads = [Thread(target=allocate) for _ in range(32)]\n"
        "    for thread in threads: thread.start()\n"
        "    together.wait()\n"
        "    for thread in threads: thread.join()\n"
        "run()\n"
        "prepare_process()\n"
        "libc.fopen.restype = ctypes.c_void_p\n"
        "with tempfile.NamedTemporaryFile() as told:\n"
        "    file = ctypes.c_void_p(libc.fopen(told.name.encode(), b'w'))\n"
        "    libc.malloc_info(0, file)\n"
        "    libc.fclose(file)\n"
        "    print(len(re.findall(b'<heap nr', told.read())))\n"
    )
    [printed] = printed_by(code, **environment)
    return int(printed)


@on_linux
def test_a_process_that_starts_with_the_environment_has_one_arena() -> None:
    """Where there were threads before, preparing it comes too late."""
    assert grown_arenas(allocator_environment()) == 1
    assert grown_arenas({}) > 1


def test_the_users_allocator_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MALLOC_ARENA_MAX", "4")
    assert allocator_environment() == {}
