"""Folders and files that nobody can read, or nobody without privileges."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

_NAME = "d" * 250
_LONGEST_PATH = 4095


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


def without_privileges(*command: str) -> list[str]:
    """The command, run so that the modes of files hold for it too if the tests run as root.

    Another user would not do: root's own folders hold the environment and the models. Without
    setpriv (of util-linux, which Linux distributions install) root finds nothing unreadable.
    """
    if os.geteuid():
        return list(command)
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        pytest.skip("as root this needs setpriv, of util-linux")
    taken = "-dac_override,-dac_read_search"
    return [setpriv, "--bounding-set", taken, "--inh-caps", taken, "--", *command]


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
