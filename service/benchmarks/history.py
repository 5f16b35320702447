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
from pathlib import Path
from threading import Lock
from typing import Annotated, TypeAlias, TypeVar

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat

from engine.errors import Quantity
from service.benchmarks.job import ACTIVE, BenchmarkJob, JobState
from service.benchmarks.owners import Owner, is_alive
from service.benchmarks.suites import SUITES, BenchmarkPlan, Value
from service.errors import StorageFailure

log = logging.getLogger(__name__)

Answer = TypeVar("Answer")

_Uint32: TypeAlias = Annotated[int, Field(ge=0, lt=2**32)]
"""The type of gRPC's fields. A larger number would make the whole list fail."""

IN_MEMORY = ":memory:"

# Each script upgrades a file from the version of its index to the next one.
MIGRATIONS = (
    """
    CREATE TABLE jobs (
        id TEXT PRIMARY KEY,
        created_at REAL NOT NULL,
        started_at REAL,
        finished_at REAL,
        state TEXT NOT NULL,
        plan TEXT NOT NULL,
        num_rows INTEGER NOT NULL,
        machine TEXT NOT NULL,
        error TEXT
    );
    CREATE TABLE rows (
        job TEXT NOT NULL REFERENCES jobs (id) ON DELETE CASCADE,
        number INTEGER NOT NULL,
        figures TEXT NOT NULL,
        PRIMARY KEY (job, number)
    ) WITHOUT ROWID;
    CREATE INDEX jobs_by_age ON jobs (created_at);
    """,
    "ALTER TABLE jobs ADD COLUMN owner TEXT",
)

_LOCK_TIMEOUT_MS = 10_000
"""How long a statement waits for another server's transaction."""


class History:
    """Stored jobs, by id and by age. The methods block while the disk works."""

    def __init__(self, path: str) -> None:
        self._lock = Lock()  # calls come from several threads
        self._unreadable: set[str] = set()  # ids of unreadable runs, already logged
        self._path, self._owner, self._db = _open(path)

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
        if self._path is not None and self._read(_owners_of_active):
            with self._writing() as db:
                _interrupt(db, self._path)

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


def _open(path: str) -> tuple[Path | None, Owner | None, sqlite3.Connection]:
    """Opens the file's database, or one in memory if the file cannot be used."""
    if path != IN_MEMORY:
        try:
            return _open_file(Path(path).expanduser())
        except (OSError, sqlite3.Error) as error:
            log.warning(
                "benchmark runs are stored in memory only",
                extra={"fields": {"path": path, "reason": str(error)}},
            )
    return None, None, _connect(None)


def _open_file(path: Path) -> tuple[Path, Owner, sqlite3.Connection]:
    path.parent.mkdir(parents=True, exist_ok=True)
    owner = Owner(path)
    try:
        return path, owner, _connect_or_rename(path)
    except BaseException:
        owner.close()
        raise


def _connect_or_rename(path: Path) -> sqlite3.Connection:
    try:
        return _connect(path)
    except sqlite3.OperationalError:  # locked or not permitted: the file itself may be fine
        raise
    except sqlite3.DatabaseError as error:
        aside = path.with_name(f"{path.name}.damaged-{int(time.time())}")
        for part in (path, *path.parent.glob(f"{path.name}-*")):
            if part.name in (path.name, f"{path.name}-wal", f"{path.name}-journal"):
                part.rename(part.with_name(part.name.replace(path.name, aside.name, 1)))
        log.error(
            "the benchmark history is damaged; renamed the file",
            extra={"fields": {"path": str(path), "aside": str(aside), "reason": str(error)}},
        )
        return _connect(path)


def _connect(path: Path | None) -> sqlite3.Connection:
    # A program that holds the file for longer than this when we start probably never lets go.
    name = IN_MEMORY if path is None else str(path)
    db = sqlite3.connect(name, timeout=1.0, check_same_thread=False)
    try:
        db.row_factory = sqlite3.Row
        db.execute("PRAGMA foreign_keys = ON")
        _check_sound(db)
        # All or nothing: a file of another program stays as it is, and of two servers that start
        # at once one waits for the other.
        with db:
            db.execute("BEGIN IMMEDIATE")
            _check_ours(db)
            _migrate(db)
            _interrupt(db, path)
        db.execute(f"PRAGMA busy_timeout = {_LOCK_TIMEOUT_MS}")
    except BaseException:
        db.close()
        raise
    return db


def _check_sound(db: sqlite3.Connection) -> None:
    (found,) = db.execute("PRAGMA quick_check(1)").fetchone()
    if found != "ok":
        raise sqlite3.DatabaseError(found)


def _check_ours(db: sqlite3.Connection) -> None:
    """Raises for a file of another program, so that we never write to it."""
    names = {name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    is_ours = names >= {"jobs", "rows"} if _version(db) else not names
    if not is_ours:
        raise sqlite3.OperationalError("the file belongs to another program")


def _version(db: sqlite3.Connection) -> int:
    version: int
    (version,) = db.execute("PRAGMA user_version").fetchone()
    return version


def _migrate(db: sqlite3.Connection) -> None:
    version = _version(db)
    if version > len(MIGRATIONS):
        raise sqlite3.OperationalError(
            f"the file has version {version}, this server knows up to {len(MIGRATIONS)}"
        )
    for script in MIGRATIONS[version:]:
        for statement in script.split(";"):  # executescript would end the transaction
            db.execute(statement)
    db.execute(f"PRAGMA user_version = {len(MIGRATIONS)}")


_IS_ACTIVE = f"state IN ({', '.join(map(repr, ACTIVE))})"


def _owners_of_active(db: sqlite3.Connection) -> list[str | None]:
    """The servers of the runs that have not ended; None for an earlier version's."""
    return [owner for (owner,) in db.execute(f"SELECT DISTINCT owner FROM jobs WHERE {_IS_ACTIVE}")]


def _interrupt(db: sqlite3.Connection, path: Path | None) -> None:
    """Marks the unfinished runs of servers that no longer live."""
    for owner in _owners_of_active(db):
        if path is None or owner is None or not is_alive(path, owner):
            db.execute(
                "UPDATE jobs SET state = 'interrupted', finished_at = coalesce("
                # Earlier versions saved no end of active runs.
                f"finished_at, started_at, created_at) WHERE owner IS ? AND {_IS_ACTIVE}",
                (owner,),
            )
