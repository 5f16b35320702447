"""The tables of files and batches, in SQLite."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import Any, Literal, NamedTuple, TypeAlias, TypeVar

from engine.errors import ResourceNotFound, shown
from service.batches.records import FINISHED
from service.errors import StorageFailure

log = logging.getLogger(__name__)

Result = TypeVar("Result")
Row: TypeAlias = tuple[Any, ...]
Table: TypeAlias = Literal["files", "batches"]
Execute: TypeAlias = Callable[..., sqlite3.Cursor]
"""A statement, and its values."""

UNFINISHED = f"status NOT IN ({', '.join(repr(status) for status in sorted(FINISHED))})"
"""Written out, as in the index: SQLite uses it for the same words only."""

INPUT_OF = "json_extract(document, '$.input_file_id')"
REACHED_AT = "json_extract(document, '$.reached.' || status)"
"""When a batch came to the status it has."""

_SCHEMA = f"""
CREATE TABLE IF NOT EXISTS files (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT UNIQUE NOT NULL,
    filename TEXT NOT NULL,
    purpose TEXT NOT NULL,
    num_bytes INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    expires_at INTEGER
);
CREATE TABLE IF NOT EXISTS batches (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT UNIQUE NOT NULL,
    status TEXT NOT NULL,
    document TEXT NOT NULL
);
CREATE INDEX IF NOT EXISTS unfinished_batches ON batches (number) WHERE {UNFINISHED};
CREATE INDEX IF NOT EXISTS batches_by_input ON batches ({INPUT_OF});
CREATE INDEX IF NOT EXISTS batches_by_time ON batches ({REACHED_AT});
"""


class Selection(NamedTuple):
    """What to read of a table: its columns, the rows that count, and the values of those words."""

    columns: str
    table: Table
    where: str = "TRUE"
    values: Sequence[Any] = ()


class Database:
    """For calls from several threads, which block while the disk works."""

    def __init__(self, path: Path) -> None:
        """Raises sqlite3.Error."""
        self._lock = Lock()
        self._connection = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.executescript(_SCHEMA)

    def close(self) -> None:
        with self._lock:
            self._connection.close()

    def rows(self, query: str, values: Sequence[Any] = ()) -> list[Row]:
        with storage_errors(), self._lock:
            return self._connection.execute(query, values).fetchall()

    @contextmanager
    def transaction(self) -> Iterator[Execute]:
        """All of its statements count, or none."""
        with storage_errors(), self._lock:
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield self._connection.execute
                self._connection.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:  # a full disk may have ended it
                    self._connection.execute("ROLLBACK")
                raise

    def page(
        self, chosen: Selection, *, after: str | None, limit: int, newest_first: bool
    ) -> tuple[list[Row], bool]:
        """A page of rows after one of them, and whether there are more. Raises ResourceNotFound."""
        columns, table, where, values = chosen
        order, beyond = ("DESC", "<") if newest_first else ("ASC", ">")
        start: tuple[int, ...] = ()
        if after is not None:
            query = f"SELECT number FROM {table} WHERE id = ? AND {where}"
            start = next(iter(self.rows(query, (after, *values))), ())
            if not start:
                raise ResourceNotFound(
                    f"after: there is no {shown(after)!r} in this list", param="after", actual=after
                )
            where = f"{where} AND number {beyond} ?"
        found = self.rows(
            f"SELECT {columns} FROM {table} WHERE {where} ORDER BY number {order} LIMIT ?",
            (*values, *start, limit + 1),
        )
        return found[:limit], len(found) > limit


@contextmanager
def storage_errors() -> Iterator[None]:
    """Reports what the disk or the database refuses as StorageFailure."""
    try:
        yield
    except (OSError, sqlite3.Error) as error:
        log.exception("the storage of batches failed")
        raise StorageFailure(f"the storage of files and batches failed: {reason(error)}") from error


def is_of_full_disk(failure: StorageFailure) -> bool:
    return getattr(failure.__cause__, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL


def reason(error: OSError | sqlite3.Error) -> str:
    """Why, without the path that the log has: callers need not know the server's folders."""
    return (isinstance(error, OSError) and error.strerror) or str(error)
