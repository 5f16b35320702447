"""The history of benchmark runs on disk: stored, migrated, and never a reason not to start."""

from __future__ import annotations

import json
import sqlite3
import time
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from service.benchmarks.history import History
from service.benchmarks.history_file import IN_MEMORY, MIGRATIONS
from service.benchmarks.job import BenchmarkJob
from service.benchmarks.suites import BenchmarkPlan
from service.errors import StorageFailure

PLAN = BenchmarkPlan(
    suite="encoder",
    model="default",
    lengths=(16, 32),
    attentions=("softmax", "lln_diag"),
    dtypes=("float32",),
    repeats=1,
    seconds=5.0,
)


def job(created_at: float = 1.0) -> BenchmarkJob:
    return BenchmarkJob(plan=PLAN, num_rows=4, machine={"torch": "2"}, created_at=created_at)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "deep" / "history.sqlite"


def test_a_run_round_trips(path: Path) -> None:
    history, saved = History(str(path)), job()
    history.save(saved)
    saved.start()
    saved.add({"attention": "softmax", "tokens": 16, "seconds": 0.5})
    history.save(saved)
    saved.add({"attention": "softmax", "tokens": 32, "seconds": 0.25})
    saved.finish("failed", {"message": "no", "code": "device_failure"})
    history.save(saved)
    history.close()
    found = History(str(path)).get(saved.id)
    assert found is not None
    assert (found.plan, found.state, found.rows) == (PLAN, "failed", saved.rows)
    assert (found.machine, found.error) == ({"torch": "2"}, saved.error)
    assert found.finished_at == saved.finished_at


def test_unfinished_runs_of_an_earlier_process_are_interrupted(path: Path) -> None:
    history, waiting, running, done = History(str(path)), job(), job(), job()
    running.start()
    assert running.started_at is not None
    running.started_at -= 60
    running.add({"attention": "softmax", "tokens": 16, "seconds": 0.5})
    done.finish("done")
    for one in (waiting, running, done):
        history.save(one)
    saved_by = time.time()
    history.close()  # a killed process does not even do this
    again = History(str(path))
    states = {one.id: one.state for one in again.newest(10)}
    assert states == {waiting.id: "interrupted", running.id: "interrupted", done.id: "done"}
    found = again.get(running.id)
    assert found is not None
    assert found.rows == running.rows
    assert found.finished_at is not None
    assert running.started_at + 60 <= found.finished_at <= saved_by


def test_newest_first_and_the_oldest_are_deleted(path: Path) -> None:
    history = History(str(path))
    jobs = [job(created_at=float(age)) for age in range(5)]
    for one in jobs:
        one.add({"tokens": 1})
        history.save(one)
    history.delete_all_but(3)
    assert [one.id for one in history.newest(10)] == [one.id for one in jobs[:1:-1]]
    assert history.get(jobs[0].id) is None
    assert [one.id for one in history.newest(1)] == [jobs[4].id]


def test_a_damaged_file_is_renamed(path: Path) -> None:
    path.parent.mkdir()
    path.write_bytes(b"this is not a database, it is a sentence" * 100)
    history = History(str(path))
    history.save(job())
    assert history.is_persistent
    (aside,) = path.parent.glob("history.sqlite.damaged-*")
    assert aside.read_bytes().startswith(b"this is not a database")


def test_a_file_with_a_damaged_page_is_renamed(path: Path) -> None:
    history = History(str(path))
    for age in range(60):
        history.save(job(created_at=float(age)))
    history.close()
    content = bytearray(path.read_bytes())
    content[4096 * 3 : 4096 * 5] = b"\xff" * 8192
    path.write_bytes(content)
    again = History(str(path))
    assert again.newest(99) == []
    assert list(path.parent.glob("history.sqlite.damaged-*"))


def test_two_servers_share_a_file(path: Path) -> None:
    first, running = History(str(path)), job()
    running.start()
    first.save(running)
    second, ended = History(str(path)), job(created_at=2.0)
    assert (first.is_persistent, second.is_persistent) == (True, True)
    ended.finish("done")
    second.save(ended)
    for history in (first, second):
        assert [one.id for one in history.newest(9)] == [ended.id, running.id]
    found = second.get(running.id)
    assert found is not None
    assert (found.state, found.is_elsewhere) == ("running", True)
    running.finish("done")
    first.save(running)
    found = second.get(running.id)
    assert found is not None
    assert (found.state, found.is_elsewhere) == ("done", False)


def test_a_run_of_a_server_that_ends_is_interrupted_while_another_lives(path: Path) -> None:
    first, second, running = History(str(path)), History(str(path)), job()
    running.start()
    first.save(running)
    first.close()  # at its death the lock is released as well
    assert [one.state for one in second.newest(9)] == ["interrupted"]
    second.close()
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_the_lock_of_a_killed_server_is_removed(path: Path) -> None:
    History(str(path)).close()
    left = path.with_name(f"{path.name}.server-0123456789ab")
    left.touch()
    History(str(path))
    assert not left.exists()


def test_runs_of_the_first_version_are_kept(path: Path) -> None:
    path.parent.mkdir()
    with sqlite3.connect(path) as db:
        db.executescript(f"{MIGRATIONS[0]} PRAGMA user_version = 1")
        db.execute(
            "INSERT INTO jobs VALUES ('bench-1', 1, 1, NULL, 'running', ?, 4, '{}', NULL)",
            (json.dumps(asdict(PLAN)),),
        )
    db.close()
    (found,) = History(str(path)).newest(9)
    assert (found.id, found.state) == ("bench-1", "interrupted")


def test_a_file_that_another_program_locks_is_not_used(path: Path) -> None:
    History(str(path)).close()
    with closing(sqlite3.connect(path)) as other:
        other.execute("BEGIN EXCLUSIVE")
        second = History(str(path))
        second.save(job())
        assert not second.is_persistent


def test_an_unwritable_folder_disables_the_history_only(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    history = History(str(tmp_path / "file" / "history.sqlite"))
    history.save(job())
    assert not history.is_persistent
    assert len(history.newest(9)) == 1


def test_a_full_disk_is_a_typed_error_and_reads_still_work(path: Path) -> None:
    history, small = History(str(path)), job()
    history.save(small)
    (pages,) = history._db.execute("PRAGMA page_count").fetchone()
    history._db.execute(f"PRAGMA max_page_count = {pages}")  # SQLite then reports a full disk
    big = job()
    for _ in range(500):
        big.add({"attention": "softmax" * 20, "tokens": 1})
    with pytest.raises(StorageFailure, match="full"):
        history.save(big)
    assert history.get(big.id) is None  # nothing is half written
    assert history.get(small.id) is not None


def test_a_file_of_a_later_version_is_not_used(path: Path) -> None:
    History(str(path)).close()
    with sqlite3.connect(path) as db:
        db.execute(f"PRAGMA user_version = {len(MIGRATIONS) + 1}")
    db.close()
    assert not History(str(path)).is_persistent
    assert path.exists()
    assert not list(path.parent.glob("*.damaged-*"))


@pytest.mark.parametrize(
    "script",
    [
        "CREATE TABLE notes (a); PRAGMA user_version = 0",
        "CREATE TABLE notes (a); PRAGMA user_version = 1",
        "CREATE TABLE jobs (a); PRAGMA user_version = 0",
        "CREATE TABLE jobs (a); CREATE TABLE rows (a); PRAGMA user_version = 1",
    ],
)
def test_a_file_of_another_program_is_not_used(tmp_path: Path, script: str) -> None:
    path = tmp_path / "theirs.sqlite"
    with sqlite3.connect(path) as db:
        db.executescript(script)
    db.close()
    before = path.read_bytes()
    history = History(str(path))
    history.save(job())
    assert not history.is_persistent
    assert path.read_bytes() == before


def test_a_read_only_file_disables_the_history_only(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    History(str(path)).close()
    connect = sqlite3.connect

    def without_the_right_to_write(name: str, **options: Any) -> sqlite3.Connection:
        """Root could write whatever the file's mode."""
        address = f"file:{name}?mode=ro" if name == str(path) else name
        db: sqlite3.Connection = connect(address, uri=True, **options)
        return db

    monkeypatch.setattr(sqlite3, "connect", without_the_right_to_write)
    history = History(str(path))
    history.save(job())
    assert not history.is_persistent


@pytest.mark.parametrize(
    "damage",
    [
        """UPDATE jobs SET plan = '{"suite": "enc' WHERE id""",
        "UPDATE jobs SET plan = json_set(plan, '$.of_a_later_version', 1) WHERE id",
        "UPDATE jobs SET plan = json_set(plan, '$.suite', 'of_a_later_version') WHERE id",
        "UPDATE jobs SET state = 'of_a_later_version' WHERE id",
        "UPDATE jobs SET plan = '[]' WHERE id",
        "UPDATE rows SET figures = '{' WHERE job",
        "UPDATE rows SET figures = '[1]' WHERE job",
        "UPDATE jobs SET created_at = 'soon' WHERE id",
        "UPDATE jobs SET finished_at = 9e999 WHERE id",
        "UPDATE jobs SET machine = '[1]' WHERE id",
        "UPDATE jobs SET num_rows = -1 WHERE id",
        "UPDATE jobs SET error = '{}' WHERE id",
        "UPDATE jobs SET plan = json_set(plan, '$.lengths', 7) WHERE id",
        "UPDATE jobs SET plan = json_set(plan, '$.repeats', -7) WHERE id",
    ],
)
def test_an_unreadable_run_is_skipped(
    path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    history, broken, sound = History(str(path)), job(), job()
    broken.finish("done")
    broken.add({"tokens": 16})
    for one in (broken, sound):
        history.save(one)
    with history._db as db:
        db.execute(f"{damage} = ?", (broken.id,))
    assert [one.id for one in history.newest(9)] == [sound.id]
    assert history.get(broken.id) is None
    assert [record.message for record in caplog.records] == [
        "skipped a benchmark run that cannot be read"
    ], "once, however often it is asked for"


def test_memory(caplog: pytest.LogCaptureFixture) -> None:
    history = History(IN_MEMORY)
    history.save(job())
    assert not history.is_persistent
    assert not caplog.records
