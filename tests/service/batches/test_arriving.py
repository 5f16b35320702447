"""Uploads that trickle in hold few places, and only until others need them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import httpx
import pytest

from service.batches import arriving
from service.batches.runner import Batches
from service.batches.store import BatchStore
from service.batches.usage import NOTHING
from tests.service.batches.routes import END, FORM, HEAD, client_of, upload

PLACES = 4


@pytest.fixture(autouse=True)
def few_places(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arriving, "MOST_AT_ONCE", PLACES)


async def trickle(end: asyncio.Event) -> AsyncIterator[bytes]:
    """A byte at a time, so that no single piece is late."""
    yield HEAD
    while not end.is_set():
        await asyncio.sleep(0.01)
        yield b"x"
    yield END


async def begin(
    client: httpx.AsyncClient, store: BatchStore, end: asyncio.Event
) -> list[asyncio.Task[httpx.Response]]:
    tasks = []
    for number in range(1, PLACES + 1):
        sent = client.post("/v1/files", content=trickle(end), headers=FORM)
        tasks.append(asyncio.create_task(sent))
        while store.usage.taken.num_bytes < number * len(HEAD):
            await asyncio.sleep(0.001)
    return tasks


def test_an_upload_that_trickles_loses_its_place_to_another(
    store: BatchStore, batches: Batches, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arriving, "_MAY_LAG_S", 0.0)

    async def run() -> None:
        end = asyncio.Event()
        async with asyncio.timeout(30), client_of(batches) as client:
            slow = await begin(client, store, end)
            await asyncio.sleep(0.1)
            assert (await upload(client, b"x")).status_code == 200
            (first,), _ = await asyncio.wait(slow, return_when=asyncio.FIRST_COMPLETED)
            assert (await upload(client, b"x")).status_code == 200  # in the place that is free now
            assert len(list(store.path("x").parent.glob("*.upload"))) == PLACES - 1
            end.set()
            answers = [(await task).status_code for task in slow]
            assert sorted(answers) == [200] * (PLACES - 1) + [429]
        error = first.result().json()["error"]
        assert error["code"] == "too_many_arriving"
        assert error["limit"] > error["actual"] > 0
        assert f"{error['actual']} bytes" in error["message"]
        assert first.result().headers["retry-after"]
        assert store.usage.taken == NOTHING

    asyncio.run(run())


def test_uploads_on_pace_keep_their_places_and_one_more_is_refused(
    store: BatchStore, batches: Batches
) -> None:
    async def run() -> None:
        end = asyncio.Event()
        async with asyncio.timeout(30), client_of(batches) as client:
            arriving_now = await begin(client, store, end)
            refused = await upload(client, b"x")
            error = refused.json()["error"]
            facts = (refused.status_code, error["code"], error["limit"], error["actual"])
            assert facts == (429, "too_many_arriving", PLACES, PLACES + 1)
            end.set()
            assert [(await task).status_code for task in arriving_now] == [200] * PLACES
            assert (await upload(client, b"x")).status_code == 200

    asyncio.run(run())
