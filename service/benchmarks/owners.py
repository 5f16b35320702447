"""Which of the servers that share a history file still live.

Each holds a lock on a small file beside it. The lock ends with the process, however that ends.
"""

from __future__ import annotations

import fcntl
import os
import uuid
from pathlib import Path


class Owner:
    """This server, as the owner of the runs that it stores."""

    def __init__(self, history: Path) -> None:
        """Takes the lock, and removes the lock files of servers that were killed."""
        self.id = uuid.uuid4().hex[:12]
        for left in history.parent.glob(_lock_file(history, "*").name):
            _remove_if_dead(left)
        self._path = _lock_file(history, self.id)
        self._descriptor = _locked(self._path)

    def close(self) -> None:
        self._path.unlink(missing_ok=True)
        os.close(self._descriptor)


def is_alive(history: Path, owner: str) -> bool:
    return not _remove_if_dead(_lock_file(history, owner))


def _lock_file(history: Path, owner: str) -> Path:
    return history.with_name(f"{history.name}.server-{owner}")


def _locked(path: Path) -> int:
    """Another server that starts now may take the new file for a dead server's, and remove it."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        if os.fstat(descriptor).st_nlink:
            return descriptor
        os.close(descriptor)


def _remove_if_dead(path: Path) -> bool:
    """Returns whether nobody holds the lock. Its file is then gone."""
    try:
        with path.open("r+") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink(missing_ok=True)
    except FileNotFoundError:
        return True
    except BlockingIOError:
        return False
    return True
