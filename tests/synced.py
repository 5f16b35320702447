"""What a program tells the system to write to the disk. Only a power cut could tell otherwise."""

from __future__ import annotations

import os
from pathlib import Path
from typing import IO

import pytest


def note_syncs(patch: pytest.MonkeyPatch) -> list[Path]:
    """The files and folders that are synced from now on, by the names that they have then. They are
    synced, too."""
    found: list[Path] = []
    sync = os.fsync

    def noted(file: int | IO[bytes]) -> None:
        number = file if isinstance(file, int) else file.fileno()
        found.append(Path(os.readlink(f"/proc/self/fd/{number}")))
        sync(number)

    patch.setattr(os, "fsync", noted)
    return found
