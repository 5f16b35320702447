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
from service.batches.usage import NOTHING, Amount, Usage

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
    def adding(self, name: str, *, taken: Amount) -> Iterator[None]:
        """Makes an upload, which has taken so much, the contents of a file, and takes them away
        again if the file does not come about inside."""
        path = self.path(name)
        with self._changing:
            os.replace(self.path(name + _UPLOAD), path)
            try:
                sync(self._folder)
                file = Amount(path.stat().st_size, 1)
                yield
            except BaseException:
                _delete(path)
                raise
            self.usage.keep(file, taken=taken)

    @contextmanager
    def changing(self, path: Path) -> Iterator[None]:
        """Counts by how much the contents have grown inside, or shrunk, have come or gone."""
        with self._changing:
            before = _amount(path)
            try:
                yield
            finally:
                self.usage.change(before, _amount(path))

    def cut(self, path: Path, num_bytes: int) -> None:
        """Keeps this many bytes of the contents, and no more."""
        with self.changing(path):
            if _amount(path).num_bytes > num_bytes:
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
            self.usage.recount(sum(self._amounts(), NOTHING))

    def _amounts(self) -> Iterator[Amount]:
        """Amounts of all contents but uploads that still arrive."""
        with os.scandir(self._folder) as entries:
            for entry in entries:
                with suppress(FileNotFoundError):  # deleted meanwhile
                    if not entry.name.endswith(_UPLOAD):
                        yield Amount(entry.stat().st_size, 1)


def _delete(path: Path) -> None:
    """What cannot be deleted now is a leftover at the next start."""
    try:
        path.unlink(missing_ok=True)
    except OSError:
        log.exception("the contents of a deleted file stay on the disk for now")


def _amount(path: Path) -> Amount:
    try:
        return Amount(path.stat().st_size, 1)
    except OSError:  # there is none
        return NOTHING
