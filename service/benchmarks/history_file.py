"""The file of the history: opened, or renamed if it is damaged; brought to the newest version."""

from __future__ import annotations

import logging
import sqlite3
import time
from pathlib import Path

from service.benchmarks.job import ACTIVE
from service.benchmarks.owners import Owner, is_alive

log = logging.getLogger(__name__)

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


def open_history(path: str) -> tuple[Path | None, Owner | None, sqlite3.Connection]:
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
            interrupt(db, path)
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


def owners_of_active(db: sqlite3.Connection) -> list[str | None]:
    """The servers of the runs that have not ended; None for an earlier version's."""
    return [owner for (owner,) in db.execute(f"SELECT DISTINCT owner FROM jobs WHERE {_IS_ACTIVE}")]


def interrupt(db: sqlite3.Connection, path: Path | None) -> None:
    """Marks the unfinished runs of servers that no longer live."""
    for owner in owners_of_active(db):
        if path is None or owner is None or not is_alive(path, owner):
            db.execute(
                "UPDATE jobs SET state = 'interrupted', finished_at = coalesce("
                # Earlier versions saved no end of active runs.
                f"finished_at, started_at, created_at) WHERE owner IS ? AND {_IS_ACTIVE}",
                (owner,),
            )
