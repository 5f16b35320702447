"""The contents of files, in a folder. All that changes them is here, and is counted."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Lock
from typing import IO

from engine.platform.files import sync
from service.batches.usage import Usage

log = logging.getLogger(__name__)

_UPLOAD = ".upload"
_CONTENTS = re.compile(r"file_[0-9a-f]{32}")
"""What we name contents: anything else in the folder is not ours to delete."""


class Contents:
    """For calls from several threads, which block while the disk works. Raises OSError."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.usage = Usage()
        self._folder = folder
        self._changing = Lock()  # what is counted, and the count

    def path(self, name: str) -> Path:
        return self._folder / name

    def open_upload(self, name: str) -> IO[bytes]:
        return self.path(name + _UPLOAD).open("wb")

    def drop_upload(self, name: str) -> None:
        self.path(name + _UPLOAD).unlink(missing_ok=True)

    @contextmanager
    def adding(self, name: str, *, taken: int) -> Iterator[None]:
        """Makes an upload, which has taken so many bytes, the contents of a file, and takes them
        away again if the file does not come about inside."""
        path = self.path(name)
        with self._changing:
            os.replace(self.path(name + _UPLOAD), path)
            try:
                sync(self._folder)
                num_bytes = path.stat().st_size
                yield
            except BaseException:
                _delete(path)
                raise
            self.usage.keep(num_bytes, taken=taken)

    @contextmanager
    def changing(self, path: Path) -> Iterator[None]:
        """Counts by how much the contents have grown inside, or shrunk."""
        with self._changing:
            before = _size(path)
            try:
                yield
            finally:
                self.usage.change(_size(path) - before)

    def cut(self, path: Path, num_bytes: int) -> None:
        """Keeps so many bytes of the contents, and no more."""
        with self.changing(path):
            if _size(path) > num_bytes:
                os.truncate(path, num_bytes)

    def delete(self, names: Iterable[str]) -> None:
        for path in map(self.path, names):
            with self.changing(path):
                _delete(path)

    def delete_leftovers(self, known: Collection[str]) -> None:
        """Deletes what a server that was killed had not finished to upload or to delete."""
        names = [entry.name for entry in self._folder.iterdir()]
        self.delete(
            name
            for name in names
            if name.endswith(_UPLOAD) or (_CONTENTS.fullmatch(name) and name not in known)
        )

    def recount(self) -> None:
        """Looks through the folder: others may have changed what is in it."""
        with self._changing:
            self.usage.recount(sum(self._sizes()))

    def _sizes(self) -> Iterator[int]:
        """Of all contents but uploads that still arrive."""
        with os.scandir(self._folder) as entries:
            for entry in entries:
                with suppress(FileNotFoundError):  # deleted meanwhile
                    if not entry.name.endswith(_UPLOAD):
                        yield entry.stat().st_size


def _delete(path: Path) -> None:
    """What cannot be deleted now is a leftover at the next start."""
    try:
        path.unlink(missing_ok=True)
    except OSError:
        log.exception("the contents of a deleted file stay on the disk for now")


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:  # there is none
        return 0
