"""What has changed in a folder since it was indexed."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from service.index.store import DATABASE, FileState
from service.readers.files import files_in, readable_name

_OWN_NAMES = {"lock", *(DATABASE + suffix for suffix in ("", "-wal", "-shm", "-journal"))}


@dataclass(frozen=True, kw_only=True)
class Found:
    """A file of the folder."""

    file: Path
    path: str  # below the folder, with / between its parts, as text
    size: int
    mtime_ns: int
    is_seen: bool = True
    """False if nothing can be told of it but its name."""
    is_folder: bool = False
    """A folder that cannot be listed comes in place of its files."""


@dataclass(frozen=True, kw_only=True)
class Changes:
    """The files of a folder, by what is to be done with them."""

    suspects: list[Found] = field(default_factory=list)
    """New, of another size or time than before, or never read. Their content decides."""

    removed: list[str] = field(default_factory=list)
    unchanged: int = 0


def changes_in(folder: Path, known: Mapping[str, FileState], place: Path) -> Changes:
    """Compares the folder with the index, without reading any file. What lies in `place`, the
    index's own folder, is not of it. What lies in folders that cannot be listed now stays as it
    is in the index."""
    found = {one.path: one for one in _files(folder, place)}
    suspects = [one for one in found.values() if _is_suspect(one, known.get(one.path))]
    hidden = {one.path for one in found.values() if one.is_folder or not one.is_seen}
    removed = [path for path in known if path not in found and not _is_below(hidden, path)]
    return Changes(suspects=suspects, removed=removed, unchanged=len(found) - len(suspects))


def _files(folder: Path, place: Path) -> Iterator[Found]:
    for file in files_in(folder):
        if is_own(file, folder, place):
            continue
        try:
            status: os.stat_result | None = file.stat()
        except (FileNotFoundError, NotADirectoryError):  # removed since the folder was listed
            continue
        except OSError:  # opening it will raise the reason
            status = None
        yield Found(
            file=file,
            path=readable_name(file.relative_to(folder).as_posix()),
            size=status.st_size if status else 0,
            mtime_ns=status.st_mtime_ns if status else 0,
            is_seen=status is not None,
            is_folder=status is not None and stat.S_ISDIR(status.st_mode),
        )


def _is_below(folders: Collection[str], path: str) -> bool:
    if not folders:  # as almost always
        return False
    return any(parent.as_posix() in folders for parent in PurePosixPath(path).parents)


def is_own(file: Path, folder: Path, place: Path) -> bool:
    """Whether a file below the folder is one of the index itself, which may lie in it or above."""
    if folder.is_relative_to(place):
        return file.parent == place and file.name in _OWN_NAMES
    return file.is_relative_to(place)


def _is_suspect(found: Found, known: FileState | None) -> bool:
    if known is None or not known.sha256:  # its content was never read: it may be readable by now
        return True
    return (found.size, found.mtime_ns) != (known.size, known.mtime_ns)


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
