"""A server opens its folder of files and batches once it can."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from pathlib import Path

import pytest

from engine.errors import LLNError
from service.batches.folder import BatchFolder
from service.batches.runner import Batches
from service.batches.store import BatchStore
from service.errors import NotAvailable, StorageFailure
from service.metrics import Metrics
from tests.service.batches.folder import LIMITS, add_file, answer_ok, requests


def folder_at(path: Path | None) -> BatchFolder:
    return BatchFolder(path, lambda store: Batches(store, answer_ok, LIMITS, Metrics().batch_api))


async def opened(folder: BatchFolder) -> Batches:
    while not folder.is_open:
        await asyncio.sleep(0.01)
    return folder.batches


def why_not(folder: BatchFolder) -> LLNError:
    with pytest.raises(LLNError) as caught:
        folder.batches  # noqa: B018
    return caught.value


def test_no_folder_is_told() -> None:
    async def run() -> LLNError:
        folder = folder_at(None)
        async with aclosing(folder), folder:
            return why_not(folder)

    assert isinstance(asyncio.run(run()), NotAvailable)


def test_a_folder_that_another_server_leaves_is_taken_over_with_its_batches(
    store: BatchStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.batches.folder._RETRY_S", 0.01)

    async def run() -> None:
        first = Batches(store, answer_ok, LIMITS, Metrics().batch_api)
        file = add_file(store, requests(3))
        batch = await first.create(file.id, "/v1/embeddings", metadata=None, output_expires_s=None)
        second = folder_at(tmp_path / "batches")
        async with asyncio.timeout(30), aclosing(second), second:
            assert why_not(second).code == "batches_in_use"
            await asyncio.sleep(0.1)
            assert not second.is_open
            await first.aclose()
            batches = await opened(second)
            while not (found := await batches.get(batch.id)).is_finished:
                await asyncio.sleep(0.01)
        assert found.counts.completed == 3

    asyncio.run(run())


def test_a_disk_that_recovers_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.batches.folder._RETRY_S", 0.01)
    in_the_way = tmp_path / "batches"
    in_the_way.write_text("x")

    async def run() -> None:
        folder = folder_at(in_the_way)
        async with asyncio.timeout(30), aclosing(folder), folder:
            assert isinstance(why_not(folder), StorageFailure)
            in_the_way.unlink()
            await opened(folder)

    asyncio.run(run())


def test_a_server_that_stops_while_it_waits_leaves_the_folder_free(
    store: BatchStore, tmp_path: Path
) -> None:
    async def run() -> None:
        folder = folder_at(tmp_path / "batches")
        async with asyncio.timeout(30), aclosing(folder), folder:
            store.close()

    asyncio.run(run())
    BatchStore(tmp_path / "batches").close()


def test_a_failed_start_leaves_the_folder_free(tmp_path: Path) -> None:
    database = tmp_path / "batches" / "batches.sqlite"
    database.parent.mkdir()
    database.write_bytes(b"no database" * 100)
    for _ in range(2):
        with pytest.raises(StorageFailure):
            BatchStore(tmp_path / "batches")
    database.unlink()
    BatchStore(tmp_path / "batches").close()
