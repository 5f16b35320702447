"""An index on disk: one SQLite file with texts, chunks, vectors and words.

A file of the folder is one transaction: its text, chunks, vectors and words change together or not
at all, whenever the process is killed. Readers go on beside a writer, and see each file either old
or new.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self, TypeAlias

import numpy as np

from engine.types import Span, Vector
from service.errors import StorageFailure
from service.index.errors import IndexMismatch, IndexNotFound
from service.index.rows import IndexedFile, Replaced, drop, insert, replace
from service.index.schema import RECORDS, TABLES, VERSION, Recipe
from service.readers.extracted import page_of

DATABASE = "index.sqlite"
_BUSY_TIMEOUT_S = 10.0

_MOST_ROWS = 2**63 - 1
"""The largest number that SQLite takes for a limit."""

_Inode: TypeAlias = tuple[int, ...]
"""Its device and its number; of a file that is taken to stay as it is, also its size and time."""


class FileState(NamedTuple):
    """What tells whether a file has changed."""

    id: int
    path: str
    size: int
    mtime_ns: int
    sha256: str
    problem: str


class Passage(NamedTuple):
    """A chunk with its place."""

    chunk: int
    file: int
    path: str
    title: str | None
    headings: tuple[str, ...]
    page_starts: tuple[int, ...]
    characters: Span
    text: str

    @property
    def page(self) -> int | None:
        """The page that it begins on, of files that have pages."""
        return page_of(self.page_starts, self.characters.start)


class Document(NamedTuple):
    """A file's text as it was read."""

    file: str
    title: str | None
    text: str


class Totals(NamedTuple):
    files: int
    unreadable: int
    chunks: int
    tokens: int


class IndexStore:
    """The index in a folder of its own. Used by one thread at a time."""

    def __init__(
        self,
        folder: Path,
        database: sqlite3.Connection,
        inode: _Inode | None,
        *,
        is_still: bool = False,
    ) -> None:
        self.folder = folder
        self._db = database
        self._inode = inode
        self._is_still = is_still
        self.recipe = Recipe.from_json(self._one("SELECT content FROM recipe")[0])

    @classmethod
    def open(cls, folder: Path) -> Self:
        """Opens an index that exists."""
        path = folder / DATABASE
        if not path.is_file():
            raise _not_found(folder)
        # Before it is opened: an index that takes its place in between is another.
        is_still = _is_still(path)
        inode = _inode_of(path, is_still=is_still)
        database = _connect(path, is_still=is_still)
        try:
            if not _has_tables(database, path):
                raise _not_found(folder)
            _check_version(database, path)
            return cls(folder, database, inode, is_still=is_still)
        except BaseException:
            database.close()
            raise

    @classmethod
    def create(cls, folder: Path, recipe: Recipe) -> Self:
        """Makes an empty index. Its writer's lock must be held."""
        database = _connect(folder / DATABASE)
        try:
            with _told_if_unwritten(folder):
                database.execute("PRAGMA journal_mode = WAL")
                database.execute("BEGIN IMMEDIATE")
                for statement in TABLES.split(";\n"):
                    database.execute(statement)
                database.execute(RECORDS)
                database.execute("INSERT INTO recipe VALUES (?)", (recipe.to_json(),))
                database.execute(f"PRAGMA user_version = {VERSION}")
                database.execute("COMMIT")
            return cls(folder, database, _inode_of(folder / DATABASE))
        except BaseException:
            database.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        self._db.close()

    @property
    def is_in_place(self) -> bool:
        """Whether the file that was opened is still the index of its folder, and is open as it has
        to be."""
        path = self.folder / DATABASE
        if self._is_still and not _is_still(path):
            return False
        return self._inode is not None and _inode_of(path, is_still=self._is_still) == self._inode

    def check_in_place(self) -> None:
        """Raises StorageFailure if the index was deleted or replaced since it was opened. SQLite
        would write on to a file that nobody finds."""
        if not self.is_in_place:
            raise StorageFailure(
                f"the index in {self.folder} was deleted or replaced while it was written; "
                "run the command again",
                code="index_gone",
            )

    def prepare_to_write(self) -> None:
        """Adds what earlier versions did not have."""
        with _told_if_unwritten(self.folder):
            self._db.execute(RECORDS)

    def set_recipe(self, recipe: Recipe) -> None:
        with self._changing() as db:
            db.execute("UPDATE recipe SET content = ?", (recipe.to_json(),))
        self.recipe = recipe

    @property
    def changes(self) -> int:
        """A number that every change raises."""
        number: int = self._one("SELECT number FROM changes")[0]
        return number

    def totals(self) -> Totals:
        files, unreadable, tokens, chunks = self._one(
            "SELECT count(*), coalesce(sum(problem != ''), 0), coalesce(sum(tokens), 0),"
            " (SELECT count(*) FROM chunks) FROM files"
        )
        return Totals(files, unreadable, chunks, tokens)

    def file_states(self) -> dict[str, FileState]:
        """Every file, by path."""
        found = self._all("SELECT id, path, size, mtime_ns, sha256, problem FROM files")
        return {row[1]: FileState(*row) for row in found}

    def put(self, file: IndexedFile) -> None:
        """Adds a file, or replaces what the index has of it."""
        with self._changing() as db:
            drop(db, file.path)
            insert(db, file)

    def replace(self, file: IndexedFile, previous: Sequence[int | None]) -> Replaced:
        """Changes what is different of a file. `previous` has the number that each of its chunks
        had, or None if it is new."""
        with self._changing() as db:
            return replace(db, file, previous)

    def record(self, file: FileState) -> bytes | None:
        """The record of this state of a file, if there is one."""
        found = self._all(
            "SELECT record FROM records WHERE file = ? AND sha256 = ?", (file.id, file.sha256)
        )
        return found[0][0] if found else None

    def move(self, old: str, new: str, *, size: int, mtime_ns: int) -> None:
        """Notes that a file has another path, or was written again, with the same content."""
        with self._changing() as db:
            db.execute(
                "UPDATE files SET path = ?, size = ?, mtime_ns = ? WHERE path = ?",
                (new, size, mtime_ns, old),
            )

    def remove(self, paths: Iterable[str]) -> None:
        for path in paths:
            with self._changing() as db:
                drop(db, path)

    def vectors(self) -> tuple[np.ndarray[tuple[int], np.dtype[np.int64]], Vector]:
        """The numbers of all chunks, in order, and their vectors: [chunks], [chunks, dim]."""
        with self._snapshot() as db:
            (count,) = db.execute("SELECT count(*) FROM chunks").fetchone()
            ids = np.empty(count, np.int64)
            matrix = np.empty((count, self.recipe.dim), np.float32)
            rows = db.execute("SELECT id, vector FROM chunks ORDER BY id")
            for at, (chunk, vector) in enumerate(rows):
                ids[at] = chunk
                matrix[at] = np.frombuffer(vector, "<f4")
        return ids, matrix

    def match(self, expression: str, limit: int) -> list[tuple[int, float]]:
        """The chunks that match an FTS5 expression best: numbers and BM25 scores."""
        found = self._all(
            "SELECT rowid, -bm25(words) FROM words WHERE words MATCH ? ORDER BY rank LIMIT ?",
            (expression, min(limit, _MOST_ROWS)),
        )
        return [(chunk, score) for chunk, score in found]

    def passage(self, chunk: int) -> Passage | None:
        """A chunk's passage; None if its file has changed since."""
        found = self._all(
            "SELECT chunks.id, files.id, files.path, files.title, chunks.headings,"
            " files.page_starts, first, last, substr(files.text, first + 1, last - first)"
            " FROM chunks JOIN files ON files.id = chunks.file WHERE chunks.id = ?",
            (chunk,),
        )
        for number, file, path, title, headings, page_starts, first, last, text in found:
            return Passage(
                *(number, file, path, title, tuple(json.loads(headings))),
                *(tuple(json.loads(page_starts)), Span(first, last), text),
            )
        return None

    def document(self, path: str) -> Document | None:
        """A file with its text; None if the index does not have it."""
        found = self._all(
            "SELECT path, title, text FROM files WHERE path = ? AND problem = ''", (path,)
        )
        return Document(*found[0]) if found else None

    def _one(self, statement: str) -> tuple[Any, ...]:
        return self._all(statement)[0]

    def _all(self, statement: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        with self._reading() as db:
            return db.execute(statement, values).fetchall()

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        try:
            yield self._db
        except sqlite3.Error as error:
            raise StorageFailure(f"the index in {self.folder} cannot be read: {error}") from error

    @contextmanager
    def _snapshot(self) -> Iterator[sqlite3.Connection]:
        """Several statements see the index as the first of them does, whatever is written
        meanwhile."""
        with self._reading() as db:
            db.execute("BEGIN")
            try:
                yield db
            finally:
                db.execute("ROLLBACK")

    @contextmanager
    def _changing(self) -> Iterator[sqlite3.Connection]:
        """One transaction, which raises the number of changes."""
        self.check_in_place()
        with _told_if_unwritten(self.folder):
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield self._db
                self._db.execute("UPDATE changes SET number = number + 1")
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:  # on a full disk, SQLite has rolled it back itself
                    self._db.execute("ROLLBACK")
                raise


@contextmanager
def _told_if_unwritten(folder: Path) -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        is_full = getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL
        advice = ". What is done is kept: make room, and run the command again" if is_full else ""
        raise StorageFailure(f"the index in {folder} cannot be written: {error}{advice}") from error


def _is_still(path: Path) -> bool:
    """Whether nobody writes this index, and this process may not write beside it: SQLite then
    reads it only if told that it does not change. While it is written, SQLite reads it as usual, by
    the writer's files."""
    is_written = path.with_name(f"{DATABASE}-wal").exists()
    return not is_written and not os.access(path.parent, os.W_OK)


def _inode_of(path: Path, *, is_still: bool = False) -> _Inode | None:
    """What tells a file from others in its place; None if there is none."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    inode = (status.st_dev, status.st_ino)
    return (*inode, status.st_size, status.st_mtime_ns) if is_still else inode


def _connect(path: Path, *, is_still: bool = False) -> sqlite3.Connection:
    place = f"{path.absolute().as_uri()}?immutable=1" if is_still else path
    try:
        database = sqlite3.connect(
            place,
            timeout=_BUSY_TIMEOUT_S,
            isolation_level=None,
            check_same_thread=False,
            uri=is_still,
        )
        # With WAL, a killed process loses nothing; a power cut may lose the last files, which the
        # next run reads again.
        database.execute("PRAGMA synchronous = NORMAL")
    except sqlite3.Error as error:
        raise StorageFailure(f"{path} cannot be opened: {error}") from error
    return database


def _not_found(folder: Path) -> IndexNotFound:
    return IndexNotFound(f"{folder} has no index; make one: lln index FOLDER", param="index")


def _has_tables(database: sqlite3.Connection, path: Path) -> bool:
    """Whether an index was made there. A full disk or a kill leaves a database without tables."""
    try:
        return bool(database.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchall())
    except sqlite3.DatabaseError as error:
        raise StorageFailure(f"{path} cannot be read: {error}") from error


def _check_version(database: sqlite3.Connection, path: Path) -> None:
    (version,) = database.execute("PRAGMA user_version").fetchone()
    if version != VERSION:
        raise IndexMismatch(
            f"{path} has version {version} of an index, this lln reads version {VERSION}; "
            "rebuild it: lln index --rebuild",
            limit=VERSION,
            actual=version,
        )
