"""What has changed in a folder since it was indexed."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from service.index.store import FileState
from service.readers.files import files_in, readable_name


@dataclass(frozen=True, kw_only=True)
class Found:
    """A file of the folder."""

    file: Path
    path: str  # below the folder, with / between its parts, as text
    size: int
    mtime_ns: int


@dataclass(frozen=True, kw_only=True)
class Changes:
    """The files of a folder, by what is to be done with them."""

    suspects: list[Found] = field(default_factory=list)
    """New, or of another size or time than before. Their content decides."""

    removed: list[str] = field(default_factory=list)
    unchanged: int = 0


def changes_in(folder: Path, known: Mapping[str, FileState], place: Path) -> Changes:
    """Compares the folder with the index, without reading any file. What lies in `place`, the
    index's own folder, is not of it."""
    found = {one.path: one for one in _files(folder, place)}
    suspects = [one for one in found.values() if _is_suspect(one, known.get(one.path))]
    removed = [path for path in known if path not in found]
    return Changes(suspects=suspects, removed=removed, unchanged=len(found) - len(suspects))


def _files(folder: Path, place: Path) -> Iterator[Found]:
    for file in files_in(folder):
        if place != folder and file.is_relative_to(place):
            continue
        try:
            stat = file.stat()
        except FileNotFoundError:  # removed since the folder was listed
            continue
        yield Found(
            file=file,
            path=readable_name(file.relative_to(folder).as_posix()),
            size=stat.st_size,
            mtime_ns=stat.st_mtime_ns,
        )


def _is_suspect(found: Found, known: FileState | None) -> bool:
    return known is None or (found.size, found.mtime_ns) != (known.size, known.mtime_ns)


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
