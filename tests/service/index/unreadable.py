"""Folders and files that nobody can read, or nobody without privileges."""

from __future__ import annotations

import ctypes
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_NAME = "d" * 250
_LONGEST_PATH = 4095
# Of Linux: CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH.
_READS_EVERYTHING = (1, 2)
_PR_CAPBSET_DROP = 24
_CAPABILITIES_VERSION = 0x20080522


@contextmanager
def folders_too_deep(folder: Path) -> Iterator[str]:
    """Folders within each other, beyond the longest path that the system takes. Yields the path of
    the first that nobody can list."""
    folder.mkdir()
    told, at = folder, os.open(folder, os.O_DIRECTORY)
    while len(os.fsencode(told)) <= _LONGEST_PATH:
        os.mkdir(_NAME, dir_fd=at)
        below = os.open(_NAME, os.O_DIRECTORY, dir_fd=at)
        os.close(at)
        told, at = told / _NAME, below
    os.close(os.open("deep.txt", os.O_CREAT | os.O_WRONLY, dir_fd=at))
    os.close(at)
    yield told.relative_to(folder.parent).as_posix()
    shutil.rmtree(folder)


def give_up_privileges() -> None:
    """The modes of files hold for this process and those that it starts, even if it is root's.

    Another user would not do: root's own folders hold the environment and the models.
    """
    if os.geteuid():
        return
    libc = ctypes.CDLL(None, use_errno=True)
    for capability in _READS_EVERYTHING:
        _succeeds(libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0))
    header = (ctypes.c_uint32 * 2)(_CAPABILITIES_VERSION, 0)
    sets = (ctypes.c_uint32 * 6)()  # effective, permitted and inheritable, then their upper halves
    _succeeds(libc.capget(header, sets))
    for capability in _READS_EVERYTHING:
        for at in range(3):
            sets[at] &= ~(1 << capability)
    _succeeds(libc.capset(header, sets))


def _succeeds(result: int) -> None:
    if result:
        raise OSError(ctypes.get_errno(), "privileges cannot be given up")


@contextmanager
def modes(changed: dict[Path, int]) -> Iterator[None]:
    before = {path: path.stat().st_mode for path in changed}
    for path, mode in changed.items():
        path.chmod(mode)
    try:
        yield
    finally:
        for path, mode in before.items():
            path.chmod(mode)
