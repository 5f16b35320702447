"""Disk space for a job: checked before it starts, and reported when it runs out."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from service.errors import StorageFailure

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_BYTES_A_NUMBER = 4


class DiskFull(StorageFailure):
    """There is no room for the output, or for the work before it."""

    code = "disk_full"


def check_space(out: Path, *, rows: int, share: float, dim: int) -> None:
    """Raises if there is clearly no room: if the vectors of a corpus of which `rows` are a `share`
    need more than is free, and twice as much again."""
    needs = round(rows / max(share, 1e-12)) * dim * _BYTES_A_NUMBER
    free = shutil.disk_usage(out.absolute().parent).free
    if needs > 2 * free:
        raise DiskFull(
            f"the vectors need about {needs:,} bytes, judged by the first rows, and "
            f"{out.absolute().parent} has {free:,}: free some, or write to another disk",
            param="out",
            limit=free,
            actual=needs,
        )


@contextmanager
def told_if_full(out: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno not in _FULL:
            raise
        raise DiskFull(
            f"{out} cannot be written: {error.strerror}. What is done is kept: make room, and run "
            "the same command again",
            param="out",
        ) from error
