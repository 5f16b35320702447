"""A descriptor that is kept for reading metrics once the process has used up all others."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress


class SpareDescriptor:
    """Memory and open files are read from files of /proc. At the limit of descriptors, which is
    when an operator needs them, the system would refuse to open these."""

    def __init__(self) -> None:
        self._kept = _opened()

    @contextmanager
    def given_up(self) -> Iterator[None]:
        """Leaves room for one file at a time."""
        if self._kept is not None:
            os.close(self._kept)
        try:
            yield
        finally:
            self._kept = _opened()


def _opened() -> int | None:
    with suppress(OSError):  # another thread was faster; the next page tries again
        return os.open(os.devnull, os.O_RDONLY)
    return None
