"""How much the files of the Batch API hold: counted once, and right whatever happens to them."""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from service.batches.answers import answer_line, expired_line
from service.batches.records import Batch, StoredFile
from service.batches.runner import Batches
from service.batches.store import BatchStore
from service.batches.uploads import Uploads
from service.batches.usage import NOTHING, Amount
from service.errors import StorageFailure
from service.metrics import Metrics
from tests.service.batches.folder import (
    LIMITS,
    HeldAnswer,
    add_batch,
    add_file,
    answer_ok,
    bytes_in,
    requests,
    until_finished,
)
from tests.service.batches.routes import client_of, upload


@pytest.fixture
def scans(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The folders that are looked through."""
    found: list[Any] = []
    scandir = os.scandir

    def noted(path: Any = ".") -> Any:
        found.append(path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", noted)
    return found


def test_an_upload_in_many_pieces_does_not_look_through_the_folder(
    batches: Batches, store: BatchStore, scans: list[Any]
) -> None:
    """Nobody announced its size."""

    async def run() -> httpx.Response:
        async with client_of(batches) as client:
            return await upload(client, *[b"x" * 10] * 100)

    assert asyncio.run(run()).json()["bytes"] == 1000
    assert scans == []
    assert store.usage.kept.num_bytes == bytes_in(store) == 1000


def test_what_is_deleted_leaves_room_at_once(batches: Batches, store: BatchStore) -> None:
    async def run() -> list[list[int]]:
        async with client_of(batches) as client:
            found = []
            for _ in range(3):
                made = [await upload(client, b"x" * 9_000) for _ in range(3)]
                found.append([answer.status_code for answer in made])
                await client.delete(f"/v1/files/{made[0].json()['id']}")
                await client.delete(f"/v1/files/{made[0].json()['id']}")
                await client.delete(f"/v1/files/{made[1].json()['id']}")
            return found

    assert asyncio.run(run()) == [[200, 200, 503]] * 3
    assert store.usage.kept.num_bytes == bytes_in(store) == 0


def test_answers_count_while_they_are_written(store: BatchStore) -> None:
    async def run() -> None:
        async with Batches(store, answer_ok, LIMITS, Metrics().batch_api) as batches:
            batch = add_batch(store, add_file(store, requests(20)).id)
            batches._wake.set()
            await until_finished(batches, batch.id)

    asyncio.run(run())
    assert store.usage.kept.num_bytes == bytes_in(store) > len(requests(20))


def test_answers_that_are_cut_off_after_a_crash_no_longer_count(tmp_path: Path) -> None:
    store = BatchStore(tmp_path / "b")
    batch = add_batch(store, add_file(store, requests(3)).id, status="in_progress")
    whole = b"".join(answer_line("r0", asyncio.run(answer_ok("", None, "req_1"))))
    torn = b'{"custom_id":"r1","respon'
    store.path(batch.output_file_id).write_bytes(whole + torn)
    store.path(batch.error_file_id).write_bytes(expired_line("r2") + torn)
    (store.path("x.upload")).write_bytes(torn)
    store.close()

    store = BatchStore(tmp_path / "b")
    before = store.usage.kept.num_bytes
    assert before == bytes_in(store)  # what had not arrived is gone
    answer = HeldAnswer()

    async def run() -> Batch:
        async with Batches(store, answer, LIMITS, Metrics().batch_api) as batches:
            await answer.is_asked.wait()
            assert store.usage.kept.num_bytes == bytes_in(store) == before - 2 * len(torn)
            answer.may_be_given.set()
            return await until_finished(batches, batch.id)

    assert asyncio.run(run()).counts.answered == 3
    assert store.usage.kept.num_bytes == bytes_in(store)


def test_files_that_others_take_away_are_noticed(
    store: BatchStore, batches: Batches, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As somebody does whose disk is full."""
    monkeypatch.setattr("service.batches.runner._SWEEP_EVERY_S", 0.01)

    async def run() -> None:
        async with asyncio.timeout(30), batches:
            file = add_file(store, b"x" * 1000)
            store.path(file.id).unlink()
            while store.usage.kept.num_bytes:
                await asyncio.sleep(0.01)

    asyncio.run(run())


def test_old_files_leave_room(store: BatchStore) -> None:
    add_file(store, b"x" * 1000, expires_at=10)
    young = add_file(store, b"x" * 300)
    store.sweep(None, now=11)
    store.sweep(None, now=11)
    assert store.usage.kept.num_bytes == bytes_in(store) == young.num_bytes


def test_uploads_that_arrive_at_once_stay_within_the_limit_together(store: BatchStore) -> None:
    limit, each, number = 20_000, 3_000, 12
    uploads = Uploads(store, Amount(limit, 100))
    most_on_disk = 0

    async def upload(announced: int) -> None:
        """In three pieces; nobody announces the size of some files."""
        nonlocal most_on_disk
        async with uploads.begin(announced) as arriving:
            for size in (1_000, 2_000, 3_000):
                arriving.reach(size)
                await arriving.write(b"x" * 1_000)
                most_on_disk = max(most_on_disk, bytes_in(store))
                await asyncio.sleep(0.001)
            await arriving.keep(
                StoredFile(
                    id=arriving.id, filename="a", purpose="batch", num_bytes=each, created_at=1
                )
            )

    async def run() -> list[BaseException]:
        arriving = (upload(each * (at % 2)) for at in range(number))
        refused = [one for one in await asyncio.gather(*arriving, return_exceptions=True) if one]
        # Those that were refused have left their places to others.
        for _ in range((limit - bytes_in(store)) // each):
            await upload(each)
        with pytest.raises(StorageFailure):
            await upload(each)
        return refused

    refused = asyncio.run(run())
    assert len(refused) >= number - limit // each
    for error in refused:
        assert isinstance(error, StorageFailure)
        assert (error.code, error.limit) == ("storage_full", limit)
    assert bytes_in(store) == store.usage.kept.num_bytes == limit // each * each
    assert most_on_disk <= limit


def test_a_caller_who_leaves_frees_the_place_of_the_upload(store: BatchStore) -> None:
    uploads = Uploads(store, Amount(20_000, 100))

    async def run() -> None:
        async def arrive() -> None:
            async with uploads.begin(20_000) as arriving:
                arriving.reach(20_000)
                await asyncio.sleep(60)

        arriving = asyncio.create_task(arrive())
        while not store.usage.taken.num_bytes:
            await asyncio.sleep(0.001)
        with pytest.raises(StorageFailure, match="others that arrive 20000"):
            async with uploads.begin(1):
                pass
        arriving.cancel()
        await asyncio.wait({arriving})
        async with uploads.begin(20_000):
            pass

    asyncio.run(run())


def test_few_bytes_in_many_files_have_a_limit_too(store: BatchStore, tmp_path: Path) -> None:
    """Of files, of uploads that arrive, and of the answers of batches, over HTTP."""
    limits = replace(LIMITS, stored=Amount(20_000, 3))
    batches = Batches(store, answer_ok, limits, Metrics().batch_api)

    def is_refused(answer: httpx.Response) -> bool:
        error = answer.json().get("error", {})
        facts = (answer.status_code, error.get("code"), error.get("limit"), error.get("actual"))
        return facts == (503, "too_many_files", 3, 4)

    async def run() -> None:
        async with client_of(batches) as client:
            made = [await upload(client, b"") for _ in range(2)]
            assert [answer.status_code for answer in made] == [200] * 2
            async with batches.uploads.begin(0):
                assert is_refused(await upload(client, b""))
            assert store.usage.taken == NOTHING
            made.append(await upload(client, b""))
            ids = [answer.json()["id"] for answer in made]
            asked = {"input_file_id": ids[0], "endpoint": "/v1/embeddings"}
            body = {**asked, "completion_window": "24h"}
            assert is_refused(await client.post("/v1/batches", json=body))
            assert is_refused(await upload(client, b""))
            await client.delete(f"/v1/files/{ids[1]}")
            assert (await client.post("/v1/batches", json=body)).status_code == 200
            assert (await upload(client, b"")).status_code == 200
            assert is_refused(await upload(client, b""))

    asyncio.run(run())
    assert store.usage.kept == Amount(0, 3)
    store.recount()
    assert store.usage.kept == Amount(0, 3)
    store.close()
    store = BatchStore(tmp_path / "batches")
    assert store.usage.kept == Amount(0, 3)
    store.close()


def test_files_of_answers_count(store: BatchStore) -> None:
    async def run() -> None:
        async with Batches(store, answer_ok, LIMITS, Metrics().batch_api) as batches:
            batch = add_batch(store, add_file(store, requests(2)).id)
            batches._wake.set()
            await until_finished(batches, batch.id)

    asyncio.run(run())
    assert store.usage.kept.num_files == 2
