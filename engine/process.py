"""What a process that computes asks of the libraries below torch, before torch is loaded."""

from __future__ import annotations

import ctypes
import gc
import os

SPIN_COUNT = "5000"
"""Some tens of microseconds: enough to bridge the gaps between operations."""

# Names and numbers of glibc's malloc.h.
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8
_MIB = 1 << 20
_KEPT = 256 * _MIB
_FRESH = 128 * _MIB


def prepare_process() -> None:
    let_idle_threads_sleep()
    keep_freed_pages()


def let_idle_threads_sleep() -> None:
    """How long torch's idle threads spin before they sleep, unless the user has decided.

    GNU OpenMP spins for milliseconds by default. Alone on a machine that gains nothing for a long
    batch and some percent for a single short text; beside another busy process it is a disaster,
    since each thread burns the time that the one it waits for needs: two engines on two cores
    slowed each other down more than twentyfold, and by their fair half with this.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", SPIN_COUNT)


def keep_freed_pages() -> None:
    """Let what one operation frees serve the next, unless the user has decided.

    An encoder's results are some megabytes each and live for one operation. By default glibc gives
    them back to the system and asks for them anew, page by page and filled with zeros, which a long
    text pays for with some percent of its time. It is worse off the main thread, whose arena alone
    grows in place; so all threads share that one. Up to 256 MiB stay with the process.
    """
    libc = ctypes.CDLL(None) if os.name == "posix" else None
    if not hasattr(libc, "mallopt") or any(name.startswith("MALLOC_") for name in os.environ):
        return
    assert libc is not None, "it has mallopt"
    for name, value in ((_ARENA_MAX, 1), (_TRIM_THRESHOLD, _KEPT), (_MMAP_THRESHOLD, _FRESH)):
        libc.mallopt(name, value)


def set_aside_what_stays() -> None:
    """Spare the garbage collector what a server holds till its end, once that is all loaded.

    Modules, routes and models are some hundred thousand objects. A full collection goes through
    them all, a fifth of a second in which no request gets on, and under load one comes every few
    seconds.
    """
    gc.collect()
    gc.freeze()
