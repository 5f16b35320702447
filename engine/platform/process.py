"""Settings of the process: threads, memory allocator, garbage collector, and usable cores.

`prepare_process` must run before torch is imported, `limit_numpy_threads` before NumPy is.
"""

from __future__ import annotations

import ctypes
import gc
import math
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from engine.platform.turns import quick_turns

_SPIN_COUNT = "5000"
"""Some tens of microseconds: enough to bridge the gaps between operations."""

# Names and numbers of glibc's malloc.h.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
_MIB = 1 << 20
_KEPT_BYTES, _MAPPED_BYTES = 256 * _MIB, 128 * _MIB

_LOWER_BY, _LOWEST = 10, 19
"""Linux's nice values: ten steps leave about a tenth of a core that others want too."""

_CGROUPS = Path("/sys/fs/cgroup")


def prepare_process() -> None:
    """Tunes OpenMP, OpenBLAS, oneMKL and glibc, unless the user's environment does."""
    _limit_spinning()
    limit_numpy_threads()
    _keep_no_buffers()
    _reuse_freed_pages()


def _limit_spinning() -> None:
    """Makes idle threads of torch sleep after microseconds.

    GNU OpenMP lets them spin for milliseconds. On an idle machine that gains nothing for a long
    batch and a few percent for a single short text. Beside another busy process each spinning
    thread takes the time of the one it waits for: two engines on two cores slowed each other down
    more than twentyfold, and only twofold with this limit.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", _SPIN_COUNT)


def limit_numpy_threads() -> None:
    """Makes NumPy compute on the thread that calls it.

    The threads of its OpenBLAS wait for each other by spinning, with no limit that could be set.
    Beside another busy process on two cores, eigenvalues of a matrix and searches among vectors
    took many times as long on two threads as on one. Torch does the large work.
    """
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


def _keep_no_buffers() -> None:
    """Makes oneMKL free the buffers of its products, which it would keep for later ones.

    They are 11 MB once a server is ready. glibc keeps freed memory too, but for all operations, and
    only while there is work.
    """
    os.environ.setdefault("MKL_DISABLE_FAST_MM", "1")


def _reuse_freed_pages() -> None:
    """Makes glibc keep up to 256 MiB of freed memory for the next operation.

    An encoder's results are some megabytes each and live for one operation. By default glibc
    returns them to the system and requests new pages, filled with zeros, which costs a long text a
    few percent. It is worse off the main thread, whose arena alone grows in place, so all threads
    share that one.
    """
    libc = _glibc()
    if libc is None or _is_allocator_tuned():
        return
    libc.mallopt(_M_ARENA_MAX, 1)
    libc.mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
    libc.mallopt(_M_MMAP_THRESHOLD, _MAPPED_BYTES)


def allocator_environment() -> dict[str, str]:
    """The same for a process that starts with it: one that has threads before `prepare_process` has
    arenas too, and glibc counts them once. Nothing if the user's environment tunes glibc."""
    if _is_allocator_tuned():
        return {}
    return {
        "MALLOC_ARENA_MAX": "1",
        "MALLOC_TRIM_THRESHOLD_": str(_KEPT_BYTES),
        "MALLOC_MMAP_THRESHOLD_": str(_MAPPED_BYTES),
    }


def _is_allocator_tuned() -> bool:
    return any(name.startswith("MALLOC_") for name in os.environ)


def _glibc() -> ctypes.CDLL | None:
    """None where another library manages memory."""
    libc = ctypes.CDLL(None) if os.name == "posix" else None
    return libc if hasattr(libc, "mallopt") and hasattr(libc, "malloc_trim") else None


@contextmanager
def loading() -> Iterator[None]:
    """Surrounds imports and the loading of models, side by side.

    What they make stays. So it is not searched for garbage, now or later.
    """
    gc.disable()
    try:
        with quick_turns():
            yield
    finally:
        gc.freeze()
        gc.enable()


def freeze_loaded_objects() -> None:
    """Exempts what a server has loaded from garbage collection, and returns what loading freed to
    the system. Call it once, after loading.

    Modules, routes and models are some hundred thousand objects. A full collection visits them all,
    which stops every request for a fifth of a second, and under load it happens every few seconds.
    """
    gc.collect()
    gc.freeze()
    trim_heap()


def trim_heap() -> None:
    """Returns freed memory to the system, where glibc would keep it for the next operation."""
    libc = _glibc()
    if libc is not None:
        libc.malloc_trim(0)


def lower_priority() -> None:
    """Lets other threads go before the calling thread, and before those that it starts.

    Only Linux has a priority for each thread.
    """
    if sys.platform == "linux":
        thread = threading.get_native_id()
        usual = os.getpriority(os.PRIO_PROCESS, thread)
        os.setpriority(os.PRIO_PROCESS, thread, min(usual + _LOWER_BY, _LOWEST))


def usable_cores(cgroups: Path = _CGROUPS) -> int:
    """The cores this process may use, within a container's CPU quota.

    Threads beyond the quota would all be stopped for the rest of every period.
    """
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    else:
        cores = os.cpu_count() or 1
    quota = _quota(cgroups)
    return cores if quota is None else min(cores, max(1, math.ceil(quota)))


def _quota(cgroups: Path) -> float | None:
    """The quota in cores, from cgroups version 2 or 1; None without a limit."""
    try:
        unified = cgroups / "cpu.max"
        if unified.is_file():
            limit, period = unified.read_text().split()
        else:
            limit = (cgroups / "cpu" / "cpu.cfs_quota_us").read_text()
            period = (cgroups / "cpu" / "cpu.cfs_period_us").read_text()
        return float(limit) / float(period) if float(limit) > 0 else None
    except (OSError, ValueError):  # no cgroups, or "max"
        return None
