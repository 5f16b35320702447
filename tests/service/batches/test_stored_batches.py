"""How many batches are kept, and how much of their answers."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import httpx

from service.batches.records import Batch
from service.batches.run import BatchLimits
from service.batches.runner import Batches
from service.batches.store import BatchStore
from service.batches.usage import NOTHING, Amount
from service.metrics import Metrics
from tests.service.batches.folder import (
    LIMITS,
    add_batch,
    add_file,
    answer_ok,
    bytes_in,
    requests,
    until_finished,
)
from tests.service.batches.routes import client_of


def batches_of(store: BatchStore, limits: BatchLimits) -> Batches:
    return Batches(store, answer_ok, limits, Metrics().batch_api)


async def start(client: httpx.AsyncClient, file_id: str) -> httpx.Response:
    asked = {"input_file_id": file_id, "endpoint": "/v1/embeddings", "completion_window": "24h"}
    return await client.post("/v1/batches", json=asked)


def finished(store: BatchStore, file_id: str, *, has_answers: bool) -> Batch:
    batch = add_batch(store, file_id, status="completed", reached={"completed": 1})
    if has_answers:
        add_file(store, b"answers", id=batch.output_file_id, purpose="batch_output")
    return batch


def test_the_oldest_finished_batch_without_files_makes_room(store: BatchStore) -> None:
    source = add_file(store, b"x")
    with_answers = finished(store, source.id, has_answers=True)
    oldest, next_oldest = (finished(store, source.id, has_answers=False) for _ in range(2))

    async def run() -> httpx.Response:
        async with client_of(batches_of(store, replace(LIMITS, stored_batches=3))) as client:
            return await start(client, source.id)

    answer = asyncio.run(run())
    assert answer.status_code == 200, answer.text
    kept = {batch.id for batch in store.list_batches(after=None, limit=100).items}
    assert kept == {with_answers.id, next_oldest.id, answer.json()["id"]}
    assert oldest.id not in kept


def test_one_more_is_refused_where_all_have_files_until_some_are_deleted(
    store: BatchStore,
) -> None:
    source = add_file(store, b"x")
    full = finished(store, source.id, has_answers=True)
    add_batch(store, source.id)  # has not finished

    async def run() -> None:
        async with client_of(batches_of(store, replace(LIMITS, stored_batches=2))) as client:
            answer = await start(client, source.id)
            error = answer.json()["error"]
            facts = (answer.status_code, error["code"], error["limit"], error["actual"])
            assert facts == (503, "too_many_stored_batches", 2, 3)
            await client.delete(f"/v1/files/{full.output_file_id}")
            assert (await start(client, source.id)).status_code == 200

    asyncio.run(run())


def test_a_batch_whose_answers_do_not_fit_fails_with_those_that_did(store: BatchStore) -> None:
    source = add_file(store, requests(40))
    room = source.num_bytes + 3_000
    limits = replace(LIMITS, stored=Amount(room, 100))

    async def run() -> Batch:
        async with asyncio.timeout(30), batches_of(store, limits) as batches:
            batch = await batches.create(
                source.id, "/v1/embeddings", metadata=None, output_expires_s=None
            )
            return await until_finished(batches, batch.id)

    found = asyncio.run(run())
    assert (found.status, found.errors[0].code) == ("failed", "storage_full")
    assert f"the limit is {room}" in found.errors[0].message
    answers = store.path(found.output_file_id).read_bytes().splitlines()
    assert 0 < len(answers) == found.counts.completed < 40
    assert bytes_in(store) == store.usage.kept.num_bytes <= room
    assert store.usage.taken == NOTHING


def test_no_batch_is_started_where_no_answer_fits(store: BatchStore) -> None:
    source = add_file(store, requests(2))

    async def run() -> httpx.Response:
        stored = Amount(source.num_bytes, 100)
        async with client_of(batches_of(store, replace(LIMITS, stored=stored))) as client:
            return await start(client, source.id)

    answer = asyncio.run(run())
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "storage_full")


def test_a_batch_over_no_file_names_the_field(batches: Batches) -> None:
    async def run() -> httpx.Response:
        async with client_of(batches) as client:
            return await start(client, "file_none")

    answer = asyncio.run(run())
    assert (answer.status_code, answer.json()["error"]["param"]) == (404, "input_file_id")
