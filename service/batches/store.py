"""Stores files and batches in a folder: contents as files, everything else in SQLite.

One server at a time uses the folder. All methods block while the disk works.
"""

from __future__ import annotations

import json
import logging
import os
import re
import sqlite3
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict
from pathlib import Path
from typing import IO

from engine.errors import InvalidInput, ResourceNotFound, shown
from engine.platform.files import sync
from service.batches.database import (
    UNFINISHED,
    Database,
    Row,
    Selection,
    storage_errors,
)
from service.batches.old import Deleted, delete_old
from service.batches.records import Batch, Counts, LineError, Page, StoredFile
from service.errors import NotAvailable, StorageFailure
from service.locks import AlreadyRunning, writers_lock

log = logging.getLogger(__name__)

_FIELDS = "id, filename, purpose, num_bytes, created_at, expires_at"
_UPLOAD = ".upload"
_CONTENTS = re.compile(r"file_[0-9a-f]{32}")
"""What we name contents: anything else in the folder is not ours to delete."""


class BatchStore:
    def __init__(self, folder: Path) -> None:
        """Raises NotAvailable if another server uses the folder, StorageFailure if none can."""
        self._contents = folder / "files"
        try:
            self._contents.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._owner = _locked(folder)
            self._db = Database(folder / "batches.sqlite")
            self._delete_leftovers()
        except (OSError, sqlite3.Error) as error:
            raise StorageFailure(
                f"files and batches cannot be stored in {folder}: {error}"
            ) from error

    def close(self) -> None:
        self._db.close()
        self._owner.close()

    # Files.

    def open_upload(self, file_id: str) -> IO[bytes]:
        """A file to write an upload to; `add_upload` makes it known, `drop_upload` removes it."""
        with storage_errors():
            return (self._contents / (file_id + _UPLOAD)).open("wb")

    def add_upload(self, file: StoredFile) -> None:
        with storage_errors():
            os.replace(self._contents / (file.id + _UPLOAD), self.path(file.id))
            sync(self._contents)
        try:
            with self._db.transaction() as execute:
                execute(f"INSERT INTO files ({_FIELDS}) VALUES (?, ?, ?, ?, ?, ?)", _row(file))
        except StorageFailure:
            self._delete_contents([file.id])
            raise

    def drop_upload(self, file_id: str) -> None:
        (self._contents / (file_id + _UPLOAD)).unlink(missing_ok=True)

    def path(self, file_id: str) -> Path:
        return self._contents / file_id

    def get_file(self, file_id: str) -> StoredFile:
        rows = self._db.rows(f"SELECT {_FIELDS} FROM files WHERE id = ?", (file_id,))
        if not rows:
            raise _no_file(file_id)
        return _file(rows[0])

    def get_contents(self, file_id: str) -> tuple[Path, os.stat_result]:
        self.get_file(file_id)
        path = self.path(file_id)
        with storage_errors():
            try:
                return path, path.stat()
            except FileNotFoundError:  # deleted meanwhile, or behind our back
                raise _no_file(file_id) from None

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
        with self._db.transaction() as execute:
            execute("DELETE FROM files WHERE id = ?", (file_id,))
        with storage_errors():
            self.path(file_id).unlink(missing_ok=True)

    @property
    def stored_bytes(self) -> int:
        """Of all contents, also of uploads that still arrive."""
        return sum(size for _, size in self._sizes())

    @property
    def kept_bytes(self) -> int:
        """Of all contents but uploads that still arrive."""
        return sum(size for name, size in self._sizes() if not name.endswith(_UPLOAD))

    def _sizes(self) -> Iterator[tuple[str, int]]:
        with storage_errors():
            for entry in os.scandir(self._contents):
                with suppress(FileNotFoundError):  # deleted meanwhile
                    yield entry.name, entry.stat().st_size

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

    # What is old.

    def sweep(self, kept_s: float | None, now: float | None = None) -> Deleted:
        """Deletes some of what is old, as `delete_old` says."""
        with self._db.transaction() as execute:
            deleted = delete_old(execute, time.time() if now is None else now, kept_s)
        self._delete_contents(deleted.files)
        return deleted

    def _delete_contents(self, names: Iterable[str]) -> None:
        """What cannot be deleted now is a leftover at the next start."""
        for name in names:
            try:
                self.path(name).unlink(missing_ok=True)
            except OSError:
                log.exception("the contents of a deleted file stay on the disk for now")

    def _delete_leftovers(self) -> None:
        """Deletes what a server that was killed had not finished to upload or to delete."""
        known = {row[0] for row in self._db.rows("SELECT id FROM files")}
        for batch in self.unfinished():
            known |= {batch.output_file_id, batch.error_file_id}
        names = [path.name for path in self._contents.iterdir()]
        left = [
            name
            for name in names
            if name.endswith(_UPLOAD) or (_CONTENTS.fullmatch(name) and name not in known)
        ]
        self._delete_contents(left)


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


def _no_file(file_id: str) -> ResourceNotFound:
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
