"""One writer at a time: a lock on a file, which the system releases when its process ends."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from engine.errors import LLNError
from engine.platform.files import named_in_errors


class AlreadyRunning(LLNError):
    """Another process writes to the same place."""

    code = "already_running"


@contextmanager
def writers_lock(path: Path, what: str) -> Iterator[None]:
    """Holds the lock, or raises AlreadyRunning with the process that holds it."""
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(file, 32, 0).decode("ascii", "replace").strip()
            by = f" (process {holder})" if holder else ""
            raise AlreadyRunning(
                f"{what} is being written by another lln{by}; wait until it is done",
                actual=holder,
            ) from None
        with named_in_errors(path):
            os.ftruncate(file, 0)
            os.pwrite(file, str(os.getpid()).encode(), 0)
        yield
    finally:
        os.close(file)
