"""Stores files and batches in a folder: contents as files, everything else in SQLite.

One server at a time uses the folder. All methods block while the disk works.
"""

from __future__ import annotations

import json
import os
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import IO

from engine.errors import InvalidInput, ResourceNotFound, shown
from engine.platform.locks import AlreadyRunning, writers_lock
from service.batches.answers import append
from service.batches.contents import Contents
from service.batches.database import (
    UNFINISHED,
    Database,
    Execute,
    Row,
    Selection,
    is_of_full_disk,
    reason,
    storage_errors,
)
from service.batches.old import Deleted, delete_old, delete_one, delete_without_files
from service.batches.records import Batch, Counts, LineError, Page, StoredFile
from service.batches.usage import NOTHING, Amount
from service.errors import NotAvailable, StorageFailure, StorageFull

_FIELDS = "id, filename, purpose, num_bytes, created_at, expires_at"


class BatchStore:
    def __init__(self, folder: Path) -> None:
        """Raises NotAvailable if another server uses the folder, StorageFailure if none can."""
        with ExitStack() as opened:
            try:
                self._contents = Contents(folder / "files")
                self.usage = self._contents.usage
                opened.enter_context(_locked(folder))
                self._db = opened.enter_context(closing(Database(folder / "batches.sqlite")))
                self._delete_leftovers()
                self._contents.recount()
            except (OSError, sqlite3.Error) as error:
                raise StorageFailure(
                    f"files and batches cannot be stored in LLN_BATCH_FOLDER: {reason(error)}"
                ) from error
            self._opened = opened.pop_all()

    def close(self) -> None:
        self._opened.close()

    # Files.

    def open_upload(self, file_id: str) -> IO[bytes]:
        """A file to write an upload to; `add_upload` makes it known, `drop_upload` removes it."""
        with storage_errors():
            return self._contents.open_upload(file_id)

    def add_upload(self, file: StoredFile, *, taken: Amount = NOTHING) -> None:
        """Makes an upload a file, which counts by itself instead of what it had taken."""
        with (
            storage_errors(),
            self._contents.adding(file.id, taken=taken),
            self._db.transaction() as execute,
        ):
            execute(f"INSERT INTO files ({_FIELDS}) VALUES (?, ?, ?, ?, ?, ?)", _row(file))

    def drop_upload(self, file_id: str) -> None:
        self._contents.drop_upload(file_id)

    def path(self, file_id: str) -> Path:
        return self._contents.path(file_id)

    def get_file(self, file_id: str) -> StoredFile:
        rows = self._db.rows(f"SELECT {_FIELDS} FROM files WHERE id = ?", (file_id,))
        if not rows:
            raise no_file(file_id)
        return _file(rows[0])

    def get_contents(self, file_id: str) -> tuple[Path, os.stat_result]:
        self.get_file(file_id)
        path = self.path(file_id)
        with storage_errors():
            try:
                return path, path.stat()
            except FileNotFoundError:  # deleted meanwhile, or behind our back
                raise no_file(file_id) from None

    def list_files(
        self, purpose: str | None, *, after: str | None, limit: int, newest_first: bool
    ) -> Page[StoredFile]:
        chosen = Selection(_FIELDS, "files", "(? IS NULL OR purpose = ?)", (purpose, purpose))
        rows, has_more = self._db.page(chosen, after=after, limit=limit, newest_first=newest_first)
        return Page(list(map(_file, rows)), has_more)

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
        self._delete(partial(delete_one, file_id=file_id))

    def recount(self) -> None:
        """Counts what the files hold by looking at each."""
        with storage_errors():
            self._contents.recount()

    def append(self, path: Path, *pieces: bytes) -> None:
        """Adds a line to the answers of a batch. Raises OSError."""
        with self._contents.changing(path):
            append(path, *pieces)

    def cut(self, path: Path, num_bytes: int) -> None:
        """Keeps this many bytes of the answers of a batch, and no more. Raises OSError."""
        self._contents.cut(path, num_bytes)

    # Batches.

    def save(self, batch: Batch) -> None:
        """Keeps what must not be undone by whoever saves an older state: the end of a batch, and
        its cancellation."""
        with self._db.transaction() as execute:
            execute(
                "INSERT INTO batches (id, status, document) VALUES (?, ?, ?) ON CONFLICT (id) "
                "DO UPDATE SET status = excluded.status, document = excluded.document "
                f"WHERE {UNFINISHED} AND (status <> 'cancelling' OR excluded.status = status)",
                (batch.id, batch.status, json.dumps(asdict(batch))),
            )

    def finish(self, batch: Batch, outputs: Sequence[StoredFile]) -> None:
        """Save a finished batch together with the files of its answers."""
        with self._db.transaction() as execute:
            for file in outputs:
                execute(
                    f"INSERT OR IGNORE INTO files ({_FIELDS}) VALUES (?, ?, ?, ?, ?, ?)",
                    _row(file),
                )
            execute(
                "UPDATE batches SET status = ?, document = ? WHERE id = ?",
                (batch.status, json.dumps(asdict(batch)), batch.id),
            )

    def get_batch(self, batch_id: str) -> Batch:
        rows = self._db.rows("SELECT document FROM batches WHERE id = ?", (batch_id,))
        if not rows:
            raise ResourceNotFound(
                f"there is no batch {shown(batch_id)}", code="batch_not_found", actual=batch_id
            )
        return _batch(rows[0])

    def list_batches(self, *, after: str | None, limit: int) -> Page[Batch]:
        """The newest first."""
        chosen = Selection("document", "batches")
        rows, has_more = self._db.page(chosen, after=after, limit=limit, newest_first=True)
        return Page(list(map(_batch, rows)), has_more)

    def unfinished(self) -> list[Batch]:
        """The oldest first."""
        query = f"SELECT document FROM batches WHERE {UNFINISHED} ORDER BY number"
        return list(map(_batch, self._db.rows(query)))

    def make_room(self, most: int) -> None:
        """Makes room for one more batch, with at most this many. Raises StorageFull."""
        with self._db.transaction() as execute:
            number = execute("SELECT COUNT(*) FROM batches").fetchone()[0]
            if number >= most:
                number -= delete_without_files(execute, number - most + 1)
        if number >= most:
            raise StorageFull(
                f"there are {number} batches, the limit is {most}; delete the files of some that "
                "have finished",
                code="too_many_stored_batches",
                limit=most,
                actual=number + 1,
            )

    # What is old.

    def sweep(self, kept_s: float | None, now: float | None = None) -> Deleted:
        """Deletes some of what is old, as `delete_old` says."""
        now = time.time() if now is None else now
        return self._delete(partial(delete_old, now=now, kept_s=kept_s))

    def _delete(self, forget: Callable[[Execute], Deleted]) -> Deleted:
        """Deletes contents once they are forgotten: if the process is killed in between, they are
        leftovers at the next start. On a full disk they go first, since the database needs room
        even to forget them."""
        deleted = None
        try:
            with self._db.transaction() as execute:
                deleted = forget(execute)
        except StorageFailure as failure:
            if deleted is None or not is_of_full_disk(failure):
                raise
            self._contents.delete(deleted.files)
            with self._db.transaction() as execute:
                deleted = forget(execute)
        self._contents.delete(deleted.files)
        return deleted

    def _delete_leftovers(self) -> None:
        known = {row[0] for row in self._db.rows("SELECT id FROM files")}
        for batch in self.unfinished():
            known |= {batch.output_file_id, batch.error_file_id}
        self._contents.delete_leftovers(known)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Holds the folder for this server until it is closed or the process ends, however it ends."""
    try:
        with writers_lock(folder / "lock", str(folder)):
            yield
    except AlreadyRunning as error:
        raise NotAvailable(
            "another server keeps its files and batches in this LLN_BATCH_FOLDER; give each server "
            "its own, or ask again when the other has stopped",
            code="batches_in_use",
        ) from error


def no_file(file_id: str) -> ResourceNotFound:
    return ResourceNotFound(
        f"there is no file {shown(file_id)}", code="file_not_found", actual=file_id
    )


def _row(file: StoredFile) -> Row:
    return (
        file.id,
        file.filename,
        file.purpose,
        file.num_bytes,
        file.created_at,
        file.expires_at,
    )


def _file(row: Row) -> StoredFile:
    names = ("id", "filename", "purpose", "num_bytes", "created_at", "expires_at")
    return StoredFile(**dict(zip(names, row, strict=True)))


def _batch(row: Row) -> Batch:
    fields = json.loads(row[0])
    fields["counts"] = Counts(**fields["counts"])
    fields["errors"] = tuple(LineError(**error) for error in fields["errors"])
    return Batch(**fields)
