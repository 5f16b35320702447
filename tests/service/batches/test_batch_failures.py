"""Batches that fail, break or are stopped: what was answered is kept."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path
from typing import Any

import orjson
import pytest

from service.batches.answers import Answered, answer_line, append
from service.batches.records import Batch, Counts
from service.batches.runner import Batches
from service.batches.store import BatchStore
from service.metrics import Metrics
from tests.service.batches.folder import (
    LIMITS,
    add_batch,
    add_file,
    answer_ok,
    requests,
    until_finished,
)


def test_a_batch_that_fails_keeps_what_was_answered(store: BatchStore, batches: Batches) -> None:
    """Its input has gone behind the server's back."""
    file = add_file(store, requests(2))
    batch = add_batch(store, file.id, status="in_progress", counts=Counts(total=2))
    answered = one_answer("r0")
    append(store.path(batch.output_file_id), *answered)
    store.path(file.id).unlink()

    async def run() -> Batch:
        async with batches:
            return await until_finished(batches, batch.id)

    found = asyncio.run(run())
    assert (found.status, found.errors[0].code) == ("failed", "file_not_found")
    assert found.counts == Counts(total=2, completed=1, tokens=3)
    document = found.document()
    assert (document["output_file_id"], document["error_file_id"]) == (batch.output_file_id, None)


def one_answer(custom_id: str) -> tuple[bytes, ...]:
    return answer_line(custom_id, asyncio.run(answer_ok("", None, "req_1")))


def test_a_batch_that_breaks_keeps_what_was_answered(
    store: BatchStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Answers on their way to the disk too."""

    def slow(path: Path, *pieces: bytes) -> None:
        time.sleep(0.2)
        append(path, *pieces)

    monkeypatch.setattr("service.batches.store.append", slow)
    number = 0

    async def answer(endpoint: str, body: Any, request_id: str) -> Answered:
        nonlocal number
        number += 1
        if number == 5:
            await asyncio.sleep(0.1)
            raise RuntimeError("a defect")
        return await answer_ok(endpoint, body, request_id)

    async def run() -> Batch:
        batches = Batches(store, answer, LIMITS, Metrics().batch_api)
        batch = add_batch(store, add_file(store, requests(5)).id)
        async with batches:
            return await until_finished(batches, batch.id)

    found = asyncio.run(run())
    assert (found.status, found.errors[0].code) == ("failed", "internal_error")
    assert found.has_output
    assert found.counts.completed == 4
    store.close()
    store = BatchStore(tmp_path / "batches")
    file = store.get_file(found.output_file_id)
    store.close()
    contents = store.path(file.id).read_bytes()
    assert file.num_bytes == len(contents)
    assert len([orjson.loads(line) for line in contents.splitlines()]) == 4


def test_a_server_that_stops_writes_to_the_end_what_it_writes(
    store: BatchStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next server may use the folder then."""
    is_writing = threading.Event()

    def slow(path: Path, *pieces: bytes) -> None:
        is_writing.set()
        time.sleep(0.1)
        append(path, *pieces)

    monkeypatch.setattr("service.batches.store.append", slow)
    batch = add_batch(store, add_file(store, requests(3)).id)
    output = store.path(batch.output_file_id)

    async def run() -> bytes:
        async with Batches(store, answer_ok, LIMITS, Metrics().batch_api):
            await asyncio.to_thread(is_writing.wait)
        stopped = output.read_bytes() if output.exists() else b""
        await asyncio.sleep(0.5)
        return stopped

    assert asyncio.run(run()) == output.read_bytes() != b""


def test_an_output_without_a_whole_answer_is_none(store: BatchStore) -> None:
    """The server was killed while it wrote the first one, and what it answers now are errors."""
    batch = add_batch(
        store,
        add_file(store, requests(1)).id,
        status="in_progress",
        counts=Counts(total=1),
    )
    store.path(batch.output_file_id).write_bytes(one_answer("r0")[0])

    async def answer(endpoint: str, body: Any, request_id: str) -> Answered:
        return Answered(400, b"{}", 0, request_id)

    async def run() -> Batch:
        async with Batches(store, answer, LIMITS, Metrics().batch_api) as batches:
            return await until_finished(batches, batch.id)

    found = asyncio.run(run())
    assert found.counts == Counts(total=1, failed=1)
    assert (found.has_output, found.has_errors) == (False, True)
    assert not store.path(batch.output_file_id).exists()


def test_a_batch_that_cannot_be_answered_does_not_hold_up_the_next(store: BatchStore) -> None:
    async def run() -> list[Batch]:
        batches = Batches(store, answer_ok, LIMITS, Metrics().batch_api)
        lost, kept = add_file(store, requests(2)), add_file(store, requests(2))
        made = [
            await batches.create(file.id, "/v1/embeddings", metadata=None, output_expires_s=None)
            for file in (lost, kept)
        ]
        store.path(lost.id).unlink()  # behind the server's back
        async with asyncio.timeout(30), batches:
            while not (await batches.get(made[1].id)).is_finished:
                await asyncio.sleep(0.01)
            return [await batches.get(batch.id) for batch in made]

    lost, kept = asyncio.run(run())
    assert (lost.status, lost.errors[0].code) == ("failed", "file_not_found")
    assert (kept.status, kept.counts.completed) == ("completed", 2)
