"""The disk of the Batch API without a server: what is resumed, expires, and is refused."""

from __future__ import annotations

import asyncio
import errno
import time
from pathlib import Path
from typing import Any

import orjson
import pytest

from engine.errors import InvalidInput, LLNError, QueueFull
from service.batches import run as batch_run
from service.batches.answers import Answered, append
from service.batches.reading import BatchReader
from service.batches.records import Batch
from service.batches.runner import Batches
from service.batches.store import BatchStore
from service.errors import NotAvailable, StorageFailure
from service.metrics import Metrics
from tests.service.batches.folder import (
    LIMITS,
    HeldAnswer,
    add_batch,
    add_file,
    answer_ok,
    files_of_at_most,
    requests,
)
from tests.synced import note_syncs


async def run_batch(store: BatchStore, answer: Any, number: int = 20, **changes: Any) -> Batch:
    """Answers a batch by a stand-in for the routes, which may fail as they seldom do."""
    file = add_file(store, requests(number))
    batches = Batches(store, answer, LIMITS, Metrics().batch_api)
    async with asyncio.timeout(30):
        batch = await batches.create(
            file.id, "/v1/embeddings", metadata=None, output_expires_s=None
        )
        if changes:
            store.save(Batch(**{**batch.__dict__, **changes}))
        async with batches:
            while not (found := await batches.get(batch.id)).is_finished:
                await asyncio.sleep(0.01)
    return found


def lines_of(path: Path) -> list[Any]:
    return [orjson.loads(line) for line in path.read_bytes().splitlines()]


def test_a_full_queue_is_waited_for(tmp_path: Path) -> None:
    refusals = 3

    async def answer(endpoint: str, body: Any, request_id: str) -> Answered:
        nonlocal refusals
        if refusals:
            refusals -= 1
            raise QueueFull("full", retry_after_s=0.01)
        return await answer_ok(endpoint, body, request_id)

    store = BatchStore(tmp_path / "b")
    found = asyncio.run(run_batch(store, answer))
    assert (found.status, found.counts.completed, found.counts.tokens) == ("completed", 20, 60)


def test_an_expired_batch_tells_what_it_did_not_answer(tmp_path: Path) -> None:
    answered = 0

    async def answer(endpoint: str, body: Any, request_id: str) -> Answered:
        nonlocal answered
        answered += 1
        if answered > 5:
            await asyncio.sleep(60)
        return await answer_ok(endpoint, body, request_id)

    store = BatchStore(tmp_path / "b")
    found = asyncio.run(run_batch(store, answer, expires_at=int(time.time()) + 2))
    assert (found.status, found.counts.completed, found.counts.failed) == ("expired", 5, 15)
    errors = lines_of(store.path(found.error_file_id))
    assert {line["error"]["code"] for line in errors} == {"batch_expired"}
    assert len({line["custom_id"] for line in errors}) == 15


def test_a_full_disk_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refused: list[tuple[bytes, ...]] = []

    def failing(path: Path, *pieces: bytes) -> None:
        if len(refused) < 4:
            refused.append(pieces)
            raise OSError(errno.ENOSPC, "no space left")
        append(path, *pieces)

    monkeypatch.setattr("service.batches.store.append", failing)
    monkeypatch.setattr(batch_run, "RETRY_S", 0.01)
    store = BatchStore(tmp_path / "b")
    found = asyncio.run(run_batch(store, answer_ok))
    assert (found.status, found.counts.completed) == ("completed", 20)
    assert len(lines_of(store.path(found.output_file_id))) == 20
    assert len(set(refused)) == 1, "the others waited, and were not told of too"


def test_answers_are_on_the_disk_when_their_batch_has_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = BatchStore(tmp_path / "b")
    synced = note_syncs(monkeypatch)
    found = asyncio.run(run_batch(store, answer_ok))
    output = store.path(found.output_file_id)
    assert synced[-2:] == [output, output.parent]


@pytest.mark.parametrize(
    "lost",
    [bytes(70), b"\0\n", b'{"custom_id": "r1', b"\xff\n"],
    ids=["zeros", "a line of zeros", "torn", "another program's"],
)
def test_answers_that_a_power_cut_lost_are_answered_again(tmp_path: Path, lost: bytes) -> None:
    """What was written last may be on the disk, and what was written before it not."""
    store = BatchStore(tmp_path / "b")
    batch = asyncio.run(run_batch(store, answer_ok))
    output, errors = store.path(batch.output_file_id), store.path(batch.error_file_id)
    first, _, third, *_ = output.read_bytes().splitlines(keepends=True)
    output.write_bytes(first + lost + third)
    found = BatchReader().progress(batch, output, errors)
    for path, num_bytes in found.num_bytes.items():
        store.cut(path, num_bytes)
    assert found.answered == {orjson.loads(first)["custom_id"]}
    assert output.read_bytes() == first


def test_long_requests_are_not_all_in_flight_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_run, "_BYTES_AT_ONCE", 170)
    assert 70 < max(map(len, requests(20).splitlines())) < 85
    in_flight = most = 0

    async def answer(endpoint: str, body: Any, request_id: str) -> Answered:
        nonlocal in_flight, most
        in_flight += 1
        most = max(most, in_flight)
        await asyncio.sleep(0.01)
        in_flight -= 1
        return await answer_ok(endpoint, body, request_id)

    found = asyncio.run(run_batch(BatchStore(tmp_path / "b"), answer))
    assert (found.status, found.counts.completed, most) == ("completed", 20, 2)


def test_a_line_that_does_not_fit_leaves_nothing_behind(tmp_path: Path) -> None:
    path = tmp_path / "answers"
    append(path, b"first\n")
    with files_of_at_most(10), pytest.raises(OSError, match="too large"):
        append(path, b"a ", b"line that is longer\n")
    assert path.read_bytes() == b"first\n"


def test_answers_on_their_way_to_the_disk_count_when_a_batch_expires(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slow(path: Path, *pieces: bytes) -> None:
        time.sleep(0.12)  # twenty of these take longer than the batch has
        append(path, *pieces)

    monkeypatch.setattr("service.batches.store.append", slow)
    store = BatchStore(tmp_path / "b")
    found = asyncio.run(run_batch(store, answer_ok, expires_at=int(time.time()) + 2))
    assert (found.status, found.counts.completed) == ("completed", 20)
    output = store.path(found.output_file_id)
    assert sorted(line["custom_id"] for line in lines_of(output)) == sorted(
        f"r{at}" for at in range(20)
    )
    assert not store.path(found.error_file_id).exists()


def test_a_failing_disk_does_not_end_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    progress, failures = BatchReader.progress, 2

    def failing(*arguments: Any) -> Any:
        nonlocal failures
        if failures:
            failures -= 1
            raise OSError(errno.EIO, "input/output error")
        return progress(*arguments)

    monkeypatch.setattr(BatchReader, "progress", failing)
    monkeypatch.setattr("service.batches.runner.RETRY_S", 0.01)
    found = asyncio.run(run_batch(BatchStore(tmp_path / "b"), answer_ok))
    assert (found.status, found.counts.completed) == ("completed", 20)


def test_too_many_requests_fail_a_batch(tmp_path: Path) -> None:
    store = BatchStore(tmp_path / "b")
    found = asyncio.run(run_batch(store, answer_ok, 51))
    assert (found.status, found.errors[0].code) == ("failed", "too_many_requests")


def test_expired_files_are_deleted_unless_they_are_needed(store: BatchStore) -> None:
    old = add_file(store, b"x", expires_at=10)
    needed = add_file(store, b"x", expires_at=10)
    add_batch(store, needed.id)
    store.sweep(None, now=11)
    assert store.get_file(needed.id) == needed
    with pytest.raises(LLNError, match="no file"):
        store.get_file(old.id)
    assert not store.path(old.id).exists()
    with pytest.raises(InvalidInput, match="not finished"):
        store.delete_file(needed.id)


def test_files_expire_also_while_a_batch_is_answered(
    store: BatchStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.batches.runner._SWEEP_EVERY_S", 0.01)
    answer = HeldAnswer()

    async def run() -> Batch:
        batches = Batches(store, answer, LIMITS, Metrics().batch_api)
        file = add_file(store, requests(2))
        batch = await batches.create(
            file.id, "/v1/embeddings", metadata=None, output_expires_s=None
        )
        async with asyncio.timeout(30), batches:
            await answer.is_asked.wait()
            old = add_file(store, b"x", expires_at=int(time.time()))
            while store.path(old.id).exists():
                await asyncio.sleep(0.01)
            answer.may_be_given.set()
            while not (found := await batches.get(batch.id)).is_finished:
                await asyncio.sleep(0.01)
            return found

    assert asyncio.run(run()).counts.completed == 2


def test_one_server_uses_a_folder(store: BatchStore, tmp_path: Path) -> None:
    with pytest.raises(NotAvailable) as caught:
        BatchStore(tmp_path / "batches")
    assert caught.value.code == "batches_in_use"
    assert str(tmp_path) not in caught.value.message


def test_callers_are_not_told_where_the_server_keeps_its_files(
    store: BatchStore, tmp_path: Path
) -> None:
    store.path("x").parent.rename(tmp_path / "away")
    with pytest.raises(StorageFailure, match="No such file or directory") as caught:
        store.open_upload("file_x")
    assert str(tmp_path) not in caught.value.message


def test_a_folder_that_cannot_be_used_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(StorageFailure, match="Not a directory") as caught:
        BatchStore(tmp_path / "file" / "batches")
    assert str(tmp_path) not in caught.value.message
