"""Batches and files that several callers change at the same moment."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from engine.errors import LLNError, QueueFull
from service.batches.answers import Answered
from service.batches.reading import BatchReader
from service.batches.records import Batch
from service.batches.requests import Checked
from service.batches.runner import Batches
from service.batches.store import BatchStore
from service.batches.uninterrupted import uninterrupted
from service.errors import StorageFailure
from service.metrics import Metrics
from tests.service.batches.folder import (
    LIMITS,
    HeldAnswer,
    add_batch,
    add_file,
    answer_ok,
    requests,
    until_finished,
)


def slowly(read: Callable[[], Any]) -> Callable[[], Any]:
    """What it read is old news by the time that it returns it."""

    def slow() -> Any:
        found = read()
        time.sleep(0.2)
        return found

    return slow


@pytest.mark.parametrize("starts_later_s", [0.0, 0.05])
def test_no_batch_starts_over_a_file_that_is_being_deleted(
    store: BatchStore, batches: Batches, monkeypatch: pytest.MonkeyPatch, starts_later_s: float
) -> None:
    monkeypatch.setattr(store, "unfinished", slowly(store.unfinished))
    file = add_file(store, requests(2))

    async def start() -> Batch:
        await asyncio.sleep(starts_later_s)
        return await batches.create(file.id, "/v1/embeddings", metadata=None, output_expires_s=None)

    async def run() -> tuple[Any, Any]:
        started, deleted = await asyncio.gather(
            start(), batches.delete_file(file.id), return_exceptions=True
        )
        return started, deleted

    started, deleted = asyncio.run(run())
    if isinstance(started, Batch):
        assert (isinstance(deleted, LLNError) and deleted.code) == "file_in_use"
        assert store.path(file.id).exists()
    else:
        assert (isinstance(started, LLNError) and started.code) == "file_not_found"
        assert deleted is None


def test_a_batch_that_is_cancelled_as_it_begins_is_cancelled(
    store: BatchStore, batches: Batches, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = add_batch(store, add_file(store, requests(20)).id)
    monkeypatch.setattr(store, "unfinished", slowly(store.unfinished))

    async def run() -> Batch:
        async with batches:
            await asyncio.sleep(0.05)  # it has been read, as one that is to run
            assert (await batches.cancel(batch.id)).status == "cancelling"
            return await until_finished(batches, batch.id)

    assert asyncio.run(run()).status == "cancelled"


def test_a_cancellation_while_the_input_is_checked_stays_on_the_disk(
    store: BatchStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check ends before the run hears of it, and saves that the batch has begun."""
    save, stored = store.save, list[str]()

    def slow(batch: Batch) -> None:
        save(batch)
        if batch.status == "cancelling":
            is_saved.set()
            time.sleep(0.3)
            stored.append(store.get_batch(batch.id).status)

    async def answer(endpoint: str, body: Any, request_id: str) -> Answered:
        await asyncio.sleep(60)
        return await answer_ok(endpoint, body, request_id)

    is_saved, check = threading.Event(), BatchReader.check

    def check_until_saved(*args: Any, **limits: Any) -> Checked:
        is_saved.wait(10)
        return check(*args, **limits)

    batch = add_batch(store, add_file(store, requests(2)).id)
    monkeypatch.setattr(store, "save", slow)
    monkeypatch.setattr(BatchReader, "check", check_until_saved)

    async def run() -> Batch:
        async with Batches(store, answer, LIMITS, Metrics().batch_api) as batches:
            while batches._running is None:
                await asyncio.sleep(0.01)
            await batches.cancel(batch.id)
            return await until_finished(batches, batch.id)

    found = asyncio.run(run())
    assert stored == ["cancelling"]
    assert found.status == "cancelled"
    assert {"in_progress", "cancelling", "cancelled"} <= set(found.reached)


def test_a_batch_is_started_though_its_storage_cannot_be_measured(
    store: BatchStore, batches: Batches, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its caller would start it again. A stand-in fails as a disk does now and then."""
    file = add_file(store, requests(2))
    unfinished = store.unfinished

    def failing() -> list[Batch]:
        if unfinished():
            raise StorageFailure("the disk does not answer")
        return []

    monkeypatch.setattr(store, "unfinished", failing)
    starting = batches.create(file.id, "/v1/embeddings", metadata=None, output_expires_s=None)
    assert asyncio.run(starting) == unfinished()[0]


def test_a_batch_that_waits_is_cancelled_at_once(store: BatchStore) -> None:
    """Its turn may come in hours. Until then it would count, and keep its file."""
    answer = HeldAnswer()

    async def run() -> Batch:
        async with Batches(store, answer, LIMITS, Metrics().batch_api) as batches:
            first, second = [
                await batches.create(
                    add_file(store, requests(2)).id,
                    "/v1/embeddings",
                    metadata=None,
                    output_expires_s=None,
                )
                for _ in range(2)
            ]
            cancelled = await batches.cancel(second.id)
            assert cancelled.status == "cancelled"
            assert {"cancelling", "cancelled"} <= set(cancelled.reached)
            assert await batches.get(second.id) == cancelled
            await batches.delete_file(second.input_file_id)
            answer.may_be_given.set()
            return await until_finished(batches, first.id)

    assert asyncio.run(run()).status == "completed"


def test_a_batch_runs_though_its_caller_leaves_while_it_is_noted(
    store: BatchStore, batches: Batches, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing else would wake the server up."""
    save, is_saving = store.save, threading.Event()

    def slow(batch: Batch) -> None:
        is_saving.set()
        time.sleep(0.2)
        save(batch)

    file = add_file(store, requests(2))

    async def run() -> Batch:
        async with batches:
            await asyncio.sleep(0.05)  # it has found that there is nothing to do
            with monkeypatch.context() as patch:
                patch.setattr(store, "save", slow)
                starting = asyncio.create_task(
                    batches.create(file.id, "/v1/embeddings", metadata=None, output_expires_s=None)
                )
                await asyncio.to_thread(is_saving.wait)
                starting.cancel()
                await asyncio.wait({starting})
            [batch] = (await batches.list(after=None, limit=9)).items
            return await until_finished(batches, batch.id)

    assert asyncio.run(run()).status == "completed"


def test_a_change_is_completed_however_often_its_caller_is_cancelled() -> None:
    made = []

    async def change() -> None:
        await asyncio.sleep(0.1)
        made.append("change")

    async def run() -> None:
        caller = asyncio.create_task(uninterrupted(change()))
        for _ in range(3):
            await asyncio.sleep(0.01)
            caller.cancel()
        with pytest.raises(asyncio.CancelledError):
            await caller
        assert made == ["change"]

    asyncio.run(run())


def test_a_finished_batch_is_cancelled_by_nobody(store: BatchStore) -> None:
    """Who cancels it reads its status before, and writes it after."""
    batch = add_batch(store, "file_i", status="in_progress")
    store.finish(batch.to("completed"), [])
    store.save(batch.to("cancelling"))
    assert store.get_batch(batch.id).status == "completed"
    assert store.unfinished() == []


def test_open_batches_are_bounded(store: BatchStore) -> None:
    async def run() -> None:
        batches = Batches(store, answer_ok, LIMITS, Metrics().batch_api)
        file = add_file(store, requests(2))
        for _ in range(2):
            await batches.create(file.id, "/v1/embeddings", metadata=None, output_expires_s=None)
        with pytest.raises(QueueFull) as caught:
            await batches.create(file.id, "/v1/embeddings", metadata=None, output_expires_s=None)
        assert (caught.value.code, caught.value.limit) == ("too_many_batches", 2)

    asyncio.run(run())
