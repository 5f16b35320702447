"""Files that must survive a power cut, and errors that say which file they are about."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


def sync(path: Path) -> None:
    """Returns when the content of a file, or the names in a folder, are on the disk. A file that
    was only renamed may be empty after a power cut."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def named_in_errors(name: Path | str) -> Iterator[None]:
    """Names the file in errors of the system that name none: opening a file names it, but writing
    to it does not, as on a full disk."""
    try:
        yield
    except OSError as error:
        if error.strerror and error.filename is None:
            error.filename = str(name)
        raise


def standard_input() -> BinaryIO:
    """Raises OSError if it was closed from the start (`<&-`)."""
    if sys.stdin is None:
        raise OSError(errno.EBADF, "it is closed", "standard input")
    return sys.stdin.buffer
