"""Where an index lies: in the folder that it is of, unless it was put elsewhere."""

from __future__ import annotations

from pathlib import Path

from service.index.errors import IndexNotFound

PLACE = ".lln"
"""The folder, within the indexed one, that holds its index."""


def index_folder(given: Path) -> Path:
    """The index of an indexed folder, or of the index's own folder."""
    return given / PLACE if (given / PLACE).is_dir() else given


def nearest_index(folder: Path) -> Path:
    """The index of this folder, or of the nearest above it that has one."""
    for one in (folder, *folder.parents):
        if (one / PLACE).is_dir():
            return one / PLACE
    raise IndexNotFound(
        f"no index in {folder} or above it: make one with `lln index FOLDER`, or name one with "
        "--index",
        param="index",
    )
