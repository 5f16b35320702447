"""The rows of a file: put in, taken out, or changed where the file did."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from engine.types import Chunk


@dataclass(frozen=True, kw_only=True)
class IndexedFile:
    """A file as it goes into the index."""

    path: str  # below the folder, with / between its parts
    size: int
    mtime_ns: int
    sha256: str
    title: str | None = None
    text: str = ""
    page_starts: tuple[int, ...] = ()
    tokens: int = 0
    problem: str = ""
    chunks: Sequence[Chunk] = ()
    record: bytes | None = None


class Replaced(NamedTuple):
    """What became of a file's vectors."""

    written: int
    kept: int


class _Row(NamedTuple):
    """A chunk as the index has it."""

    id: int
    number: int
    words: tuple[str | None, str, str]
    vector: bytes


def drop(db: sqlite3.Connection, path: str) -> None:
    """Takes a file out, if it is there."""
    file = _file_at(db, path)
    if file is None:
        return
    _delete(db, _rows_of(db, file))
    db.execute("DELETE FROM records WHERE file = ?", (file,))
    db.execute("DELETE FROM files WHERE id = ?", (file,))


def insert(db: sqlite3.Connection, file: IndexedFile) -> None:
    """Puts a file in that is not there."""
    cursor = db.execute(
        "INSERT INTO files (path, size, mtime_ns, sha256, title, text, page_starts, tokens,"
        " problem) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (file.path, *_columns(file)),
    )
    number = int(cursor.lastrowid or 0)
    for chunk in file.chunks:
        _insert_chunk(db, number, file, chunk)
    _put_record(db, number, file)


def replace(db: sqlite3.Connection, file: IndexedFile, previous: Sequence[int | None]) -> Replaced:
    """Changes what is different of a file that is there: a chunk that is only moved keeps its row,
    its words and its vector."""
    number = _file_at(db, file.path)
    if number is None:
        insert(db, file)
        return Replaced(len(file.chunks), 0)
    left = {row.number: row for row in _rows_of(db, number)}
    # Numbers are unique in a file: those of before step aside.
    db.execute("UPDATE chunks SET number = -1 - number WHERE file = ?", (number,))
    db.execute(
        "UPDATE files SET size = ?, mtime_ns = ?, sha256 = ?, title = ?, text = ?, page_starts = ?,"
        " tokens = ?, problem = ? WHERE id = ?",
        (*_columns(file), number),
    )
    kept = 0
    for chunk, before in zip(file.chunks, previous, strict=True):
        row = None if before is None else left.get(before)
        if row is None or row.words != _words(file, chunk):
            _insert_chunk(db, number, file, chunk)
            continue
        del left[row.number]
        vector = _as_bytes(chunk)
        kept += row.vector == vector
        db.execute(
            "UPDATE chunks SET number = ?, first = ?, last = ?, vector = ? WHERE id = ?",
            (chunk.index, *chunk.characters, vector, row.id),
        )
    _delete(db, list(left.values()))
    _put_record(db, number, file)
    return Replaced(len(file.chunks) - kept, kept)


def _columns(file: IndexedFile) -> tuple[object, ...]:
    """All of a file's columns but its path."""
    return (
        *(file.size, file.mtime_ns, file.sha256, file.title, file.text),
        *(json.dumps(file.page_starts), file.tokens, file.problem),
    )


def _file_at(db: sqlite3.Connection, path: str) -> int | None:
    found = db.execute("SELECT id FROM files WHERE path = ?", (path,)).fetchone()
    return None if found is None else int(found[0])


def _rows_of(db: sqlite3.Connection, file: int) -> list[_Row]:
    title, text = db.execute("SELECT title, text FROM files WHERE id = ?", (file,)).fetchone()
    found = db.execute(
        "SELECT id, number, headings, first, last, vector FROM chunks WHERE file = ?", (file,)
    )
    return [
        _Row(chunk, number, (title, headings, text[first:last]), vector)
        for chunk, number, headings, first, last, vector in found
    ]


def _delete(db: sqlite3.Connection, rows: Sequence[_Row]) -> None:
    # FTS5 takes out the words that it is given, and keeps no text itself.
    db.executemany(
        "INSERT INTO words (words, rowid, title, headings, text) VALUES ('delete', ?, ?, ?, ?)",
        [(row.id, *row.words) for row in rows],
    )
    db.executemany("DELETE FROM chunks WHERE id = ?", [(row.id,) for row in rows])


def _insert_chunk(db: sqlite3.Connection, file: int, of: IndexedFile, chunk: Chunk) -> None:
    title, headings, text = _words(of, chunk)
    cursor = db.execute(
        "INSERT INTO chunks (file, number, first, last, headings, vector)"
        " VALUES (?, ?, ?, ?, ?, ?)",
        (file, chunk.index, *chunk.characters, headings, _as_bytes(chunk)),
    )
    db.execute(
        "INSERT INTO words (rowid, title, headings, text) VALUES (?, ?, ?, ?)",
        (cursor.lastrowid, title, headings, text),
    )


def _put_record(db: sqlite3.Connection, number: int, file: IndexedFile) -> None:
    db.execute("DELETE FROM records WHERE file = ?", (number,))
    if file.record is not None:
        db.execute("INSERT INTO records VALUES (?, ?, ?)", (number, file.sha256, file.record))


def _words(file: IndexedFile, chunk: Chunk) -> tuple[str | None, str, str]:
    first, last = chunk.characters
    return file.title, json.dumps(chunk.headings, ensure_ascii=False), file.text[first:last]


def _as_bytes(chunk: Chunk) -> bytes:
    return chunk.vector.astype("<f4").tobytes()
