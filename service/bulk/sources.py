"""The files of a corpus: what folders, globs, paths and URLs name, each once, in order."""

from __future__ import annotations

import glob
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Literal, TypeAlias

from engine.errors import InvalidInput
from service.bulk.remote import RemoteFile, find_remote, is_url, path_of
from service.readers.files import files_in, readable_name

Format: TypeAlias = Literal["auto", "jsonl", "csv", "tsv", "parquet", "lines", "text"]

STDIN = "-"
_FORMAT_OF_SUFFIX: Mapping[str, Format] = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".csv": "csv",
    ".tsv": "tsv",
    ".parquet": "parquet",
}


@dataclass(frozen=True)
class Source:
    """A file, and what its rows are called by."""

    path: Path | RemoteFile | None  # None for standard input
    name: str
    format: Format

    @property
    def place(self) -> str:
        """Where it is, however it was named."""
        return os.path.abspath(self.path) if isinstance(self.path, Path) else self.name

    @property
    def num_bytes(self) -> int:
        if self.path is None:
            return 0
        return self.path.stat().st_size if isinstance(self.path, Path) else self.path.num_bytes


def find_sources(
    given: Sequence[str], form: Format = "auto", *, own: Collection[Path] = ()
) -> list[Source]:
    """The files that these paths, folders and globs name, in order, each once. A job's `own` files
    and folders may lie in a folder that it reads, and are not of it."""
    if given.count(STDIN) > 1:
        raise InvalidInput("standard input can be read only once", param="from")
    found = [source for one in given for source in _sources(one, form, own)]
    return found if len(given) == 1 else list(_each_once(found))


def _each_once(sources: Sequence[Source]) -> Iterator[Source]:
    """Raises for two documents of one name: nobody could tell their vectors apart."""
    seen: set[str] = set()
    documents: dict[str, Source] = {}
    for source in sources:
        place = source.place
        if place in seen:
            continue
        seen.add(place)
        if source.format == "text" and documents.setdefault(source.name, source) is not source:
            raise InvalidInput(
                f"{documents[source.name].place} and {place} would both have the id "
                f"{source.name}: name a folder that holds both, or embed them one after the other",
                code="same_id",
                param="from",
                actual=source.name,
            )
        yield source


def _sources(given: str, form: Format, own: Collection[Path]) -> Iterator[Source]:
    if given == STDIN:
        yield Source(None, "stdin", "jsonl" if form == "auto" else form)
        return
    path = Path(given)
    files: Sequence[tuple[Path | RemoteFile, str]]
    if is_url(given):
        files = find_remote(given)
    elif path.is_dir():
        below = (file for file in files_in(path) if not _is_one_of(own, file))
        files = [(file, file.relative_to(path).as_posix()) for file in below]
    elif path.exists():
        if _is_one_of(own, path):
            raise InvalidInput(
                f"{given} would be read and written by the same job: name another --out or --bad",
                code="reads_its_output",
                param="from",
                actual=given,
            )
        files = [(path, given)]
    else:
        named = sorted(glob.glob(given, recursive=True)) if glob.has_magic(given) else []
        matching = ((Path(name), name) for name in named if Path(name).is_file())
        files = [(file, name) for file, name in matching if not _is_one_of(own, file)]
    if not files:
        raise InvalidInput(f"{given} names no file", code="no_files", param="from", actual=given)
    for file, name in files:
        yield Source(file, readable_name(name), _format_of(name) if form == "auto" else form)


def _is_one_of(own: Collection[Path], file: Path) -> bool:
    if not any(one.name in file.parts for one in own):  # resolving a path takes time
        return False
    return any(file.resolve().is_relative_to(one.resolve()) for one in own)


def _format_of(name: str) -> Format:
    return _FORMAT_OF_SUFFIX.get(PurePosixPath(path_of(name)).suffix.lower(), "text")


def total_bytes(sources: Sequence[Source]) -> int | None:
    """The bytes of all files; None if they are not known."""
    if any(source.path is None for source in sources):
        return None
    total = 0
    for source in sources:
        with suppress(OSError):  # its row says why it cannot be read, or that it has gone
            total += source.num_bytes
    return total
