"""The history of benchmarks on disk: kept, migrated, and never a reason not to start."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from service.benchmarks.history import IN_MEMORY, MIGRATIONS, History
from service.benchmarks.job import BenchmarkJob
from service.benchmarks.suite import BenchmarkPlan
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


def test_a_run_comes_back_as_it_was(path: Path) -> None:
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


def test_what_an_earlier_process_left_unfinished_is_interrupted(path: Path) -> None:
    history, waiting, running, done = History(str(path)), job(), job(), job()
    running.start()
    running.add({"attention": "softmax", "tokens": 16, "seconds": 0.5})
    done.finish("done")
    for one in (waiting, running, done):
        history.save(one)
    history.close()  # which a killed process does not even do
    again = History(str(path))
    states = {one.id: one.state for one in again.newest(10)}
    assert states == {waiting.id: "interrupted", running.id: "interrupted", done.id: "done"}
    found = again.get(running.id)
    assert found is not None
    assert (found.rows, found.finished_at) == (running.rows, running.started_at)


def test_newest_first_and_the_oldest_are_forgotten(path: Path) -> None:
    history = History(str(path))
    jobs = [job(created_at=float(age)) for age in range(5)]
    for one in jobs:
        one.add({"tokens": 1})
        history.save(one)
    history.forget_all_but(3)
    assert [one.id for one in history.newest(10)] == [one.id for one in jobs[:1:-1]]
    assert history.get(jobs[0].id) is None
    assert [one.id for one in history.newest(1)] == [jobs[4].id]


def test_a_damaged_file_is_put_aside(path: Path) -> None:
    path.parent.mkdir()
    path.write_bytes(b"this is not a database, it is a sentence" * 100)
    history = History(str(path))
    history.save(job())
    assert history.is_kept
    (aside,) = path.parent.glob("history.sqlite.damaged-*")
    assert aside.read_bytes().startswith(b"this is not a database")


def test_a_file_damaged_within_is_put_aside(path: Path) -> None:
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


def test_a_file_of_another_process_is_left_alone(path: Path) -> None:
    first, running = History(str(path)), job()
    running.start()
    first.save(running)
    second = History(str(path))
    assert (first.is_kept, second.is_kept) == (True, False)
    second.save(job())
    assert [one.id for one in first.newest(9)] == [running.id]
    assert [one.state for one in first.newest(9)] == ["running"]


def test_a_folder_that_cannot_be_written_costs_the_history_only(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    history = History(str(tmp_path / "file" / "history.sqlite"))
    history.save(job())
    assert not history.is_kept
    assert len(history.newest(9)) == 1


def test_a_full_disk_is_a_typed_error_and_the_rest_still_reads(path: Path) -> None:
    history, small = History(str(path)), job()
    history.save(small)
    (pages,) = history._db.execute("PRAGMA page_count").fetchone()
    history._db.execute(f"PRAGMA max_page_count = {pages}")  # SQLite's own way to be full
    big = job()
    for _ in range(500):
        big.add({"attention": "softmax" * 20, "tokens": 1})
    with pytest.raises(StorageFailure, match="full"):
        history.save(big)
    assert history.get(big.id) is None  # nothing half written
    assert history.get(small.id) is not None


def test_a_file_of_a_later_version_is_left_alone(path: Path) -> None:
    History(str(path)).close()
    with sqlite3.connect(path) as db:
        db.execute(f"PRAGMA user_version = {len(MIGRATIONS) + 1}")
    db.close()
    assert not History(str(path)).is_kept
    assert path.exists()
    assert not list(path.parent.glob("*.damaged-*"))


def test_memory(caplog: pytest.LogCaptureFixture) -> None:
    history = History(IN_MEMORY)
    history.save(job())
    assert not history.is_kept
    assert not caplog.records
