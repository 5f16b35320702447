"""Stores files and batches in a folder: contents as files, everything else in SQLite.

One server at a time uses the folder. All methods block while the disk works.
"""

from __future__ import annotations

import json
import logging
import os
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from threading import Lock
from typing import IO, Any, TypeVar

from engine.errors import InvalidInput, ResourceNotFound, shown
from engine.platform.files import sync
from service.batches.records import FINISHED, Batch, Counts, LineError, StoredFile
from service.errors import NotAvailable, StorageFailure
from service.locks import AlreadyRunning, writers_lock

log = logging.getLogger(__name__)

Answer = TypeVar("Answer")

_TABLES = """
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
"""
_FIELDS = "id, filename, purpose, num_bytes, created_at, expires_at"
_UPLOAD = ".upload"
_FINISHED = ", ".join("?" for _ in FINISHED)


class BatchStore:
    def __init__(self, folder: Path) -> None:
        """Raises NotAvailable if another server uses the folder, StorageFailure if none can."""
        self._contents = folder / "files"
        self._lock = Lock()  # calls come from several threads
        try:
            self._contents.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._owner = _locked(folder)
            self._db = sqlite3.connect(
                folder / "batches.sqlite", check_same_thread=False, isolation_level=None
            )
            self._db.execute("PRAGMA journal_mode = WAL")
            self._db.executescript(_TABLES)
            for left in self._contents.glob(f"*{_UPLOAD}"):
                left.unlink()  # of a server that was killed meanwhile
        except (OSError, sqlite3.Error) as error:
            raise StorageFailure(
                f"files and batches cannot be stored in {folder}: {error}"
            ) from error

    def close(self) -> None:
        with self._lock:
            self._db.close()
            self._owner.close()

    # Files.

    def open_upload(self, file_id: str) -> IO[bytes]:
        """A file to write an upload to; `add_upload` makes it known, `drop_upload` removes it."""
        return self._writing(lambda: (self._contents / (file_id + _UPLOAD)).open("wb"))

    def add_upload(self, file: StoredFile) -> None:
        def add() -> None:
            os.replace(self._contents / (file.id + _UPLOAD), self.path(file.id))
            sync(self._contents)
            self._insert(file)

        self._writing(add)

    def drop_upload(self, file_id: str) -> None:
        (self._contents / (file_id + _UPLOAD)).unlink(missing_ok=True)

    def path(self, file_id: str) -> Path:
        return self._contents / file_id

    def get_file(self, file_id: str) -> StoredFile:
        query = f"SELECT {_FIELDS} FROM files WHERE id = ?"
        rows = self._rows(query, (file_id,))
        if not rows:
            raise ResourceNotFound(
                f"there is no file {shown(file_id)}", code="file_not_found", actual=file_id
            )
        return _file(rows[0])

    def list_files(self, purpose: str | None, *, newest_first: bool) -> list[StoredFile]:
        order = "DESC" if newest_first else "ASC"
        rows = self._rows(
            f"SELECT {_FIELDS} FROM files WHERE ? IS NULL OR purpose = ? ORDER BY number {order}",
            (purpose, purpose),
        )
        return [_file(row) for row in rows]

    def delete_file(self, file_id: str) -> None:
        """Raises InvalidInput for the input of a batch that has not finished."""
        self.get_file(file_id)
        for batch in self.unfinished():
            if file_id == batch.input_file_id:
                raise InvalidInput(
                    f"file {file_id} is the input of batch {batch.id}, which has not finished",
                    code="file_in_use",
                    param="file_id",
                    actual=file_id,
                )
        self._remove(file_id)

    @property
    def stored_bytes(self) -> int:
        """Of all contents, also of uploads that still arrive."""
        return sum(size for _, size in self._sizes())

    @property
    def kept_bytes(self) -> int:
        """Of all contents but uploads that still arrive."""
        return sum(size for name, size in self._sizes() if not name.endswith(_UPLOAD))

    def _sizes(self) -> Iterator[tuple[str, int]]:
        for entry in os.scandir(self._contents):
            with suppress(FileNotFoundError):  # deleted meanwhile
                yield entry.name, entry.stat().st_size

    def sweep(self, now: float | None = None) -> None:
        """Delete the files that have expired."""
        rows = self._rows(
            "SELECT id FROM files WHERE expires_at <= ?", (time.time() if now is None else now,)
        )
        in_use = {batch.input_file_id for batch in self.unfinished()} if rows else set()
        for (file_id,) in rows:
            if file_id not in in_use:
                self._remove(file_id)

    # Batches.

    def save(self, batch: Batch) -> None:
        """A batch that has finished stays as it is: whoever cancels it may have come too late."""

        def save() -> None:
            with self._lock:
                self._db.execute(
                    "INSERT INTO batches (id, status, document) VALUES (?, ?, ?) ON CONFLICT (id) "
                    "DO UPDATE SET status = excluded.status, document = excluded.document "
                    f"WHERE status NOT IN ({_FINISHED})",
                    (batch.id, batch.status, json.dumps(asdict(batch)), *FINISHED),
                )

        self._writing(save)

    def finish(self, batch: Batch, outputs: Sequence[StoredFile]) -> None:
        """Save a finished batch together with the files of its answers."""

        def save() -> None:
            with self._transaction() as db:
                for file in outputs:
                    db.execute(
                        f"INSERT OR IGNORE INTO files ({_FIELDS}) VALUES (?, ?, ?, ?, ?, ?)",
                        _row(file),
                    )
                db.execute(
                    "UPDATE batches SET status = ?, document = ? WHERE id = ?",
                    (batch.status, json.dumps(asdict(batch)), batch.id),
                )

        self._writing(save)

    def get_batch(self, batch_id: str) -> Batch:
        rows = self._rows("SELECT document FROM batches WHERE id = ?", (batch_id,))
        if not rows:
            raise ResourceNotFound(
                f"there is no batch {shown(batch_id)}", code="batch_not_found", actual=batch_id
            )
        return _batch(rows[0])

    def list_batches(self) -> list[Batch]:
        """The newest first."""
        return [
            _batch(row) for row in self._rows("SELECT document FROM batches ORDER BY number DESC")
        ]

    def unfinished(self) -> list[Batch]:
        """The oldest first."""
        query = f"SELECT document FROM batches WHERE status NOT IN ({_FINISHED}) ORDER BY number"
        return [_batch(row) for row in self._rows(query, tuple(FINISHED))]

    def _insert(self, file: StoredFile) -> None:
        with self._lock:
            self._db.execute(f"INSERT INTO files ({_FIELDS}) VALUES (?, ?, ?, ?, ?, ?)", _row(file))

    def _remove(self, file_id: str) -> None:
        def remove() -> None:
            with self._lock:
                self._db.execute("DELETE FROM files WHERE id = ?", (file_id,))
            self.path(file_id).unlink(missing_ok=True)

        self._writing(remove)

    def _rows(self, query: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        def read() -> list[tuple[Any, ...]]:
            with self._lock:
                return self._db.execute(query, values).fetchall()

        return self._writing(read)

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            self._db.execute("BEGIN")
            try:
                yield self._db
            except BaseException:
                self._db.execute("ROLLBACK")
                raise
            self._db.execute("COMMIT")

    def _writing(self, work: Callable[[], Answer]) -> Answer:
        try:
            return work()
        except (OSError, sqlite3.Error) as error:
            log.exception("the storage of batches failed")
            raise StorageFailure(f"the storage of files and batches failed: {error}") from error


def _locked(folder: Path) -> ExitStack:
    """Holds the folder for this server until it is closed or the process ends, however it ends."""
    held = ExitStack()
    try:
        held.enter_context(writers_lock(folder / "lock", str(folder)))
    except AlreadyRunning as error:
        raise NotAvailable(
            f"another server keeps its files and batches in {folder}; give each server its own "
            "LLN_BATCH_FOLDER",
            code="batches_in_use",
        ) from error
    return held


def _row(file: StoredFile) -> tuple[Any, ...]:
    return (
        file.id,
        file.filename,
        file.purpose,
        file.num_bytes,
        file.created_at,
        file.expires_at,
    )


def _file(row: tuple[Any, ...]) -> StoredFile:
    names = ("id", "filename", "purpose", "num_bytes", "created_at", "expires_at")
    return StoredFile(**dict(zip(names, row, strict=True)))


def _batch(row: tuple[Any, ...]) -> Batch:
    fields = json.loads(row[0])
    fields["counts"] = Counts(**fields["counts"])
    fields["errors"] = tuple(LineError(**error) for error in fields["errors"])
    return Batch(**fields)
