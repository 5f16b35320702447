"""The history of benchmark runs, in an SQLite file that several servers may share.

If the file cannot be used, because another program made or locks it or the disk fails, runs are
stored in memory instead. A damaged file is renamed, not deleted. A single run that cannot be read
is skipped.
"""

from __future__ import annotations

import json
import logging
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from threading import Lock
from typing import Annotated, TypeAlias, TypeVar

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat

from engine.errors import Quantity
from service.benchmarks.history_file import interrupt, open_history, owners_of_active
from service.benchmarks.job import ACTIVE, BenchmarkJob, JobState
from service.benchmarks.suites import SUITES, BenchmarkPlan, Value
from service.errors import StorageFailure

log = logging.getLogger(__name__)

Answer = TypeVar("Answer")

_Uint32: TypeAlias = Annotated[int, Field(ge=0, lt=2**32)]
"""The type of gRPC's fields. A larger number would make the whole list fail."""


class History:
    """Stored jobs, by id and by age. The methods block while the disk works."""

    def __init__(self, path: str) -> None:
        self._lock = Lock()  # calls come from several threads
        self._unreadable: set[str] = set()  # ids of unreadable runs, already logged
        self._path, self._owner, self._db = open_history(path)

    @property
    def is_persistent(self) -> bool:
        """Whether the history outlives the process."""
        return self._path is not None

    def save(self, job: BenchmarkJob) -> None:
        """Saves the job's current state and its new rows.

        An active run is saved with this moment as its end. It stays if the process is killed.
        """
        with self._writing() as db:
            db.execute(
                "INSERT INTO jobs VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?) "
                "ON CONFLICT (id) DO UPDATE SET started_at = excluded.started_at, "
                "finished_at = excluded.finished_at, state = excluded.state, "
                "error = excluded.error",
                (
                    job.id,
                    job.created_at,
                    job.started_at,
                    time.time() if job.is_active else job.finished_at,
                    job.state,
                    json.dumps(asdict(job.plan)),
                    job.num_rows,
                    json.dumps(dict(job.machine)),
                    None if job.error is None else json.dumps(job.error),
                    self._owner and self._owner.id,
                ),
            )
            (known,) = db.execute("SELECT count(*) FROM rows WHERE job = ?", (job.id,)).fetchone()
            new = enumerate(job.rows[known:], start=known)
            db.executemany(
                "INSERT INTO rows VALUES (?, ?, ?)",
                [(job.id, number, json.dumps(dict(row))) for number, row in new],
            )

    def get(self, job_id: str) -> BenchmarkJob | None:
        self._interrupt_abandoned()
        jobs = self._read(
            lambda db: db.execute("SELECT * FROM jobs WHERE id = ?", (job_id,)).fetchall()
        )
        return self._job_if_readable(jobs[0]) if jobs else None

    def newest(self, number: int) -> list[BenchmarkJob]:
        self._interrupt_abandoned()
        found = self._read(
            lambda db: db.execute(
                "SELECT * FROM jobs ORDER BY created_at DESC, id LIMIT ?", (number,)
            ).fetchall()
        )
        jobs = [self._job_if_readable(job) for job in found]
        return [job for job in jobs if job is not None]

    def delete_all_but(self, number: int) -> None:
        with self._writing() as db:
            db.execute(
                "DELETE FROM jobs WHERE id NOT IN "
                "(SELECT id FROM jobs ORDER BY created_at DESC, id LIMIT ?)",
                (number,),
            )

    def close(self) -> None:
        with self._lock:
            self._db.close()
            if self._owner is not None:
                self._owner.close()

    def _interrupt_abandoned(self) -> None:
        """Another server may have been killed since this one started."""
        if self._path is not None and self._read(owners_of_active):
            with self._writing() as db:
                interrupt(db, self._path)

    def _job_if_readable(self, found: sqlite3.Row) -> BenchmarkJob | None:
        """Returns None for an invalid run, or one that another version wrote."""
        rows = self._read(
            lambda db: db.execute(
                "SELECT figures FROM rows WHERE job = ? ORDER BY number", (found["id"],)
            ).fetchall()
        )
        try:
            return _job(found, rows)
        except (TypeError, ValueError) as error:
            self._warn_once(str(found["id"]), str(error))
            return None

    def _warn_once(self, job_id: str, reason: str) -> None:
        """Logs each unreadable run once, not at every listing."""
        if job_id not in self._unreadable:
            self._unreadable.add(job_id)
            fields = {"benchmark": job_id, "reason": reason}
            log.warning("skipped a benchmark run that cannot be read", extra={"fields": fields})

    def _read(self, ask: Callable[[sqlite3.Connection], Answer]) -> Answer:
        try:
            with self._lock:
                return ask(self._db)
        except sqlite3.Error as error:
            raise _failure("read", error) from error

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        """Runs one transaction."""
        try:
            with self._lock, self._db:
                yield self._db
        except sqlite3.Error as error:
            raise _failure("written", error) from error


class _Written(BaseModel):
    """Validates a run of the file, which another version or program may have written."""

    model_config = ConfigDict(extra="forbid")

    id: str
    plan: BenchmarkPlan
    num_rows: _Uint32
    machine: dict[str, str]
    state: JobState
    created_at: FiniteFloat
    started_at: FiniteFloat | None
    finished_at: FiniteFloat | None
    rows: list[dict[str, Value]]
    error: dict[str, Quantity | None] | None


def _job(found: sqlite3.Row, rows: Sequence[sqlite3.Row]) -> BenchmarkJob:
    columns = dict(found)
    del columns["owner"]
    for name in ("plan", "machine", "error"):
        columns[name] = None if columns[name] is None else json.loads(columns[name])
    written = _Written(**columns, rows=[json.loads(row["figures"]) for row in rows])
    _check_plan(written.plan)
    if written.error is not None and not {"code", "message"} <= written.error.keys():
        raise ValueError("its error has no code or no message")
    values = {name: getattr(written, name) for name in _Written.model_fields}
    return BenchmarkJob(**values, is_elsewhere=written.state in ACTIVE)


def _check_plan(plan: BenchmarkPlan) -> None:
    if plan.suite not in SUITES:
        raise ValueError(f"its suite is {plan.suite}")
    for number in (plan.repeats, *plan.lengths):
        if not 0 <= number < 2**32:
            raise ValueError(f"its plan has the number {number}")


def _failure(what: str, error: sqlite3.Error) -> StorageFailure:
    return StorageFailure(f"the benchmark history could not be {what}: {error}")
