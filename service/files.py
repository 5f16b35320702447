"""Files that appear whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from engine.platform.files import sync


@contextmanager
def whole_file(path: Path, beside: Path | None = None) -> Iterator[BinaryIO]:
    """A file to write. It takes its place, on the disk, when it is written to its end; until then
    it lies in `beside`, a folder of the same file system."""
    draft = (beside or path.parent) / f"{path.name}.draft"
    with draft.open("w+b") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)
    sync(path.parent)
