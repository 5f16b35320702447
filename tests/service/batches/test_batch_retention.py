"""What the Batch API deletes by itself, and what it keeps."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import openai
import pytest

from engine.errors import LLNError
from service.batches.records import FINISHED, Batch, BatchStatus, StoredFile, new_id
from service.batches.runner import Batches
from service.batches.store import BatchStore
from service.metrics import Metrics
from tests.service.batches.folder import LIMITS, HeldAnswer, add_batch, add_file, bytes_in, requests
from tests.service.conftest import StartServer

KEPT_S = 1000
NOW = 50_000
LONG_AGO, OF_LATE = NOW - KEPT_S, NOW - KEPT_S + 1


def finished(
    store: BatchStore,
    ended_at: int,
    *,
    status: BatchStatus = "completed",
    input_file: StoredFile | None = None,
    answers_expire_at: int | None = None,
) -> Batch:
    """A batch that ended then, with a file of answers and one of errors."""
    source = input_file or add_file(store, b"x")
    batch = add_batch(store, source.id, reached={"in_progress": 1, status: ended_at})
    files = []
    for file_id in (batch.output_file_id, batch.error_file_id):
        store.path(file_id).write_bytes(b"answers")
        files.append(
            StoredFile(
                id=file_id,
                filename="out.jsonl",
                purpose="batch_output",
                num_bytes=7,
                created_at=ended_at,
                expires_at=answers_expire_at,
            )
        )
    ended = replace(batch, status=status, has_output=True, has_errors=True)
    store.finish(ended, files)
    return ended


def files_of(batch: Batch) -> list[str]:
    return [batch.input_file_id, batch.output_file_id, batch.error_file_id]


def kept(store: BatchStore) -> tuple[set[str], set[str]]:
    """The batches and the files that are there. Every file has contents, and no contents are of no
    file."""
    batches = store.list_batches(after=None, limit=10_000).items
    files = store.list_files(None, after=None, limit=10_000, newest_first=True).items
    names = {file.id for file in files}
    assert {path.name for path in store.path("x").parent.iterdir()} == names
    return {batch.id for batch in batches}, names


@pytest.mark.parametrize("status", sorted(FINISHED))
def test_batches_go_with_their_files_when_they_ended_long_ago(
    store: BatchStore, status: BatchStatus
) -> None:
    old = finished(store, LONG_AGO, status=status)
    young = finished(store, OF_LATE, status=status)
    deleted = store.sweep(KEPT_S, now=NOW)
    assert (deleted.batches, sorted(deleted.files)) == ([old.id], sorted(files_of(old)))
    assert kept(store) == ({young.id}, set(files_of(young)))
    with pytest.raises(LLNError, match="no batch"):
        store.get_batch(old.id)


def test_unfinished_batches_stay_with_their_files(store: BatchStore) -> None:
    inputs = [add_file(store, b"x") for _ in range(5)]
    statuses: list[BatchStatus] = [
        "validating",
        "in_progress",
        "finalizing",
        "cancelling",
        "in_progress",
    ]
    batches = [
        add_batch(store, file.id, status=status, reached={status: 1})
        for file, status in zip(inputs, statuses, strict=True)
    ]
    old = finished(store, LONG_AGO, input_file=inputs[0])  # the same file for two batches
    assert store.sweep(KEPT_S, now=NOW).batches == [old.id]
    assert kept(store) == ({batch.id for batch in batches}, {file.id for file in inputs})


def test_an_input_stays_while_there_is_a_batch_over_it(store: BatchStore) -> None:
    shared = add_file(store, b"x")
    finished(store, LONG_AGO, input_file=shared)
    young = finished(store, OF_LATE, input_file=shared)
    store.sweep(KEPT_S, now=NOW)
    assert kept(store) == ({young.id}, set(files_of(young)))
    store.sweep(KEPT_S, now=NOW + 1)
    assert kept(store) == (set(), set())


def test_files_that_no_batch_uses_go_too(store: BatchStore) -> None:
    add_file(store, b"x", created_at=LONG_AGO)
    young = add_file(store, b"x", created_at=OF_LATE)
    store.sweep(KEPT_S, now=NOW)
    assert kept(store) == (set(), {young.id})


def test_files_with_an_expiry_of_their_own_keep_to_it(store: BatchStore) -> None:
    promised = add_file(store, b"x", expires_at=NOW + 100)
    batch = finished(store, LONG_AGO, input_file=promised, answers_expire_at=NOW + 50)
    store.sweep(KEPT_S, now=NOW)
    assert kept(store) == (set(), set(files_of(batch)))
    store.sweep(KEPT_S, now=NOW + 50)
    assert kept(store) == (set(), {promised.id})
    store.sweep(KEPT_S, now=NOW + 100)
    assert kept(store) == (set(), set())


def test_without_a_retention_everything_stays(store: BatchStore) -> None:
    batch = finished(store, 1)
    unused = add_file(store, b"x")
    deleted = store.sweep(None, now=NOW)
    assert (deleted.batches, deleted.files) == ([], [])
    assert kept(store) == ({batch.id}, {*files_of(batch), unused.id})


def test_much_is_deleted_in_portions(store: BatchStore) -> None:
    """Nobody can start a batch meanwhile."""
    with store._db.transaction() as execute:
        for number in range(450):
            execute(
                "INSERT INTO files (id, filename, purpose, num_bytes, created_at, expires_at) "
                "VALUES (?, 'in.jsonl', 'batch', 1, 1, ?)",
                (f"file_{number}", NOW if number % 2 else None),
            )
            execute(
                "INSERT INTO batches (id, status, document) VALUES (?, 'failed', ?)",
                (f"batch_{number}", f'{{"reached": {{"failed": {LONG_AGO}}}}}'),
            )
    portions = []
    while (deleted := store.sweep(KEPT_S, now=NOW)) != ([], []):
        portions.append((len(deleted.batches), len(deleted.files)))
    assert portions == [(200, 400), (200, 50), (50, 0)]
    assert kept(store) == (set(), set())


def test_old_batches_are_found_without_reading_all(tmp_path: Path) -> None:
    """By indexes, which the folders of earlier versions get too."""
    folder = tmp_path / "b"
    store = BatchStore(folder)
    old = finished(store, LONG_AGO)
    store.close()
    database = sqlite3.connect(folder / "batches.sqlite")
    names = [
        row[0]
        for row in database.execute(
            "SELECT name FROM sqlite_master WHERE type = 'index' AND sql IS NOT NULL"
        )
    ]
    for name in names:
        database.execute(f"DROP INDEX {name}")
    database.commit()
    database.close()
    store = BatchStore(folder)
    queries: list[str] = []
    trace = store._db._connection.set_trace_callback
    trace(queries.append)
    store.unfinished()
    assert store.sweep(KEPT_S, now=NOW).batches == [old.id]
    trace(None)
    scans = [
        row[3]
        for query in queries
        if "FROM batches" in query
        for row in store._db.rows("EXPLAIN QUERY PLAN " + query)
        if "SCAN batches" in row[3] and "INDEX" not in row[3]
    ]
    assert scans == []
    store.close()


def test_old_batches_go_at_start_and_while_another_one_runs(
    store: BatchStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.batches.runner._SWEEP_EVERY_S", 0.01)
    answer = HeldAnswer()

    async def until_gone(batch: Batch) -> None:
        while batch.id in {one.id for one in store.list_batches(after=None, limit=99).items}:
            await asyncio.sleep(0.01)

    async def run() -> Batch:
        batches = Batches(store, answer, replace(LIMITS, kept_s=KEPT_S), Metrics().batch_api)
        at_start = finished(store, LONG_AGO)
        running = await batches.create(
            add_file(store, requests(2)).id, "/v1/embeddings", metadata=None, output_expires_s=None
        )
        async with asyncio.timeout(30), batches:
            await until_gone(at_start)
            await answer.is_asked.wait()
            await until_gone(finished(store, LONG_AGO))
            answer.may_be_given.set()
            while not (found := await batches.get(running.id)).is_finished:
                await asyncio.sleep(0.01)
            assert kept(store) == ({found.id}, {found.input_file_id, found.output_file_id})
            return found

    found = asyncio.run(run())
    assert (found.status, found.counts.completed) == ("completed", 2)


def test_leftovers_of_a_killed_server_go_at_the_next_start(tmp_path: Path) -> None:
    """It had moved an upload to its place or forgotten a file, and nothing more."""
    folder = tmp_path / "b"
    store = BatchStore(folder)
    batch = add_batch(store, add_file(store, b"x").id, status="in_progress")
    store.path(batch.output_file_id).write_bytes(b"an answer so far")
    store.path(new_id("file")).write_bytes(b"of no upload and no batch")
    store.path("notes").write_bytes(b"not ours")
    store.close()
    store = BatchStore(folder)
    left = {path.name for path in (folder / "files").iterdir()}
    assert left == {batch.input_file_id, batch.output_file_id, "notes"}
    store.close()


def test_an_upload_that_cannot_be_noted_leaves_nothing(store: BatchStore) -> None:
    file = StoredFile(id=new_id("file"), filename="a", purpose="batch", num_bytes=1, created_at=1)
    store.open_upload(file.id).close()
    store._db.close()
    with pytest.raises(LLNError, match="storage"):
        store.add_upload(file)
    assert bytes_in(store) == store.usage.kept.num_bytes == 0
    assert not store.path(file.id).exists()


@pytest.mark.long
def test_a_servers_retention_by_the_openai_client(
    start_server: StartServer, tmp_path: Path, write_checkpoint: Any
) -> None:
    folder = tmp_path / "batches"
    settings = {"LLN_MODELS": str(write_checkpoint()), "LLN_BATCH_FOLDER": str(folder)}
    first = start_server(**settings)
    with openai.OpenAI(base_url=f"{first.http_url}/v1", api_key="unused") as client:
        file = client.files.create(file=("in.jsonl", requests(2)), purpose="batch")
        batch = client.batches.create(
            input_file_id=file.id, endpoint="/v1/embeddings", completion_window="24h"
        )
        while client.batches.retrieve(batch.id).status != "completed":
            time.sleep(0.05)
    assert first.stop() == 0
    time.sleep(2)  # times are whole seconds
    second = start_server(**settings, LLN_BATCH_RETENTION_S="1")
    with openai.OpenAI(base_url=f"{second.http_url}/v1", api_key="unused") as client:
        deadline = time.monotonic() + 30
        while client.batches.list().data and time.monotonic() < deadline:
            time.sleep(0.05)
        with pytest.raises(openai.NotFoundError, match="no batch"):
            client.batches.retrieve(batch.id)
        assert client.files.list().data == []
        with pytest.raises(openai.NotFoundError, match="no file"):
            client.files.content(file.id)
    assert list((folder / "files").iterdir()) == []


class FullDisk:
    """A connection to a database on a disk that is full until a file is gone. It stands in for
    such a disk, which only root can mount."""

    def __init__(self, connection: sqlite3.Connection, file: Path) -> None:
        self._connection = connection
        self._file = file

    def execute(self, statement: str, values: Any = ()) -> sqlite3.Cursor:
        if statement == "COMMIT" and self._file.exists():
            error = sqlite3.OperationalError("database or disk is full")
            error.sqlite_errorcode = sqlite3.SQLITE_FULL
            raise error
        return self._connection.execute(statement, values)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)


@pytest.mark.parametrize("how", ["by its caller", "as it is old"])
def test_a_full_disk_keeps_nothing_from_being_deleted(
    store: BatchStore, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    file = add_file(store, b"x", created_at=LONG_AGO)
    full = FullDisk(store._db._connection, store.path(file.id))
    monkeypatch.setattr(store._db, "_connection", full)
    if how == "by its caller":
        store.delete_file(file.id)
    else:
        assert store.sweep(KEPT_S, now=NOW).files == [file.id]
    assert kept(store) == (set(), set())
    assert store.usage.kept.num_files == 0
