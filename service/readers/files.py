"""Which reader reads a file, and which files a folder has."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

from engine.errors import LLNError
from service.readers.extracted import Extracted, Unreadable, told_title
from service.readers.html import read_html
from service.readers.markdown import read_markdown
from service.readers.pdf import read_pdf
from service.readers.plain import read_plain

Reader: TypeAlias = Callable[[bytes], Extracted]

READERS: Mapping[str, Reader] = {
    ".md": read_markdown,
    ".markdown": read_markdown,
    ".html": read_html,
    ".htm": read_html,
    ".xhtml": read_html,
    ".pdf": read_pdf,
}
"""Readers by suffix; every other file is read as plain text."""

MAX_FILE_BYTES = 256 * 1024 * 1024
"""Larger files are refused unread: text of a million tokens takes a few megabytes."""

_ESCAPE = re.compile(rb"\\(?=x[0-9a-f]{2})")

_SKIPPED_FOLDERS = frozenset({"__pycache__", "node_modules"})


def readable_name(name: str) -> str:
    """A file's name as text that can be stored: bytes that are not UTF-8 are written as \\xNN, and
    so is a backslash where such an escape would begin. No two names become the same."""
    return _ESCAPE.sub(rb"\\x5c", os.fsencode(name)).decode("utf-8", "backslashreplace")


def read_bytes(path: Path) -> bytes:
    check_size(path.stat().st_size)
    return path.read_bytes()


def check_size(size: int) -> None:
    if size > MAX_FILE_BYTES:
        raise Unreadable(
            f"it has {size} bytes, the limit is {MAX_FILE_BYTES}",
            code="file_too_large",
            limit=MAX_FILE_BYTES,
            actual=size,
        )


def reader_of(name: str) -> Reader:
    return READERS.get(Path(name).suffix.lower(), read_plain)


def read_content(name: str, content: bytes) -> Extracted:
    """The text of a file of this name. Raises Unreadable for one that its reader cannot read."""
    try:
        found = reader_of(name)(content)
    except LLNError:
        raise
    except Exception as error:  # of a parser: a damaged file must not end a job of a million
        raise Unreadable(f"its reader failed: {type(error).__name__}: {error}") from error
    return replace(found, title=told_title(found.title))


def files_in(folder: Path) -> Iterator[Path]:
    """The files of a folder and of those below it, in the order of their paths.

    Hidden files and folders are left out, and so are links: they could lead anywhere, in circles
    too. A folder below that cannot be listed comes in place of its files; reading it as a file
    raises the reason. Raises OSError if the folder itself cannot be listed.
    """
    open_folders = [_entries(folder)]  # no recursion: folders may lie a thousand deep
    while open_folders:
        entry = next(open_folders[-1], None)
        if entry is None:
            open_folders.pop()
        elif entry.name.startswith(".") or entry.is_symlink():
            continue
        elif entry.is_dir():
            if entry.name in _SKIPPED_FOLDERS:
                continue
            try:
                open_folders.append(_entries(entry.path))
            except OSError:
                yield Path(entry.path)
        elif entry.is_file():
            yield Path(entry.path)


def _entries(folder: str | Path) -> Iterator[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            found = sorted(entries, key=lambda entry: entry.name)
    except (FileNotFoundError, NotADirectoryError):  # removed or replaced since it was listed
        return iter(())
    return iter(found)


def why_unread(error: OSError) -> str:
    """Why a file or a folder cannot be read, in a few words."""
    return error.strerror or str(error)


def may_be_in(folder: Path, path: Path) -> bool:
    """Whether a path below the folder could be one of its files, by its names alone."""
    if path == folder:  # it was removed itself
        return True
    *folders, name = path.relative_to(folder).parts
    is_skipped = any(part in _SKIPPED_FOLDERS for part in folders)
    return not is_skipped and not any(part.startswith(".") for part in (*folders, name))
