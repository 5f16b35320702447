"""A batch's requests by the routes' own handlers and a real engine, without a server."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from pathlib import Path
from typing import Any

import orjson
import pytest

from engine import AsyncEngine
from service.app import batch_folder
from service.batches.answers import Answered
from service.batches.records import Batch, StoredFile
from service.batches.runner import Batches
from service.http.batch_requests import BatchRequests
from service.metrics import Metrics
from service.settings import Settings

NUMBER = 40
BODIES: dict[str, Any] = {
    "/v1/embeddings": {"input": ["the quick brown fox", "the lazy dog"]},
    "/v1/documents": {"text": "One. Two. Three.", "chunking": {"type": "sentences"}},
    "/v1/rerank": {"query": "fox", "documents": ["the quick brown fox", "the lazy dog"]},
}


@pytest.mark.parametrize("endpoint", BODIES)
def test_requests_wait_longer_than_those_that_somebody_waits_for(
    endpoint: str, write_checkpoint: Any, tmp_path: Path
) -> None:
    chosen: dict[str, Any] = {
        "batch_folder": str(tmp_path / "batches"),
        "request_timeout_s": 1e-6,
    }
    settings = Settings(**chosen)

    async def run() -> Batch:
        async with AsyncEngine.load([str(write_checkpoint())]) as engine:
            folder = batch_folder(settings, engine, Metrics().batch_api)
            async with asyncio.timeout(60), aclosing(folder), folder:
                batches = folder.batches
                file = _stored(batches, endpoint)
                batch = await batches.create(
                    file.id, endpoint, metadata=None, output_expires_s=None
                )
                while not (found := await batches.get(batch.id)).is_finished:
                    await asyncio.sleep(0.01)
                return found

    found = asyncio.run(run())
    counts = found.counts
    assert (found.status, counts.completed, counts.failed) == ("completed", NUMBER, 0)


def test_a_priority_that_is_none_is_refused(write_checkpoint: Any) -> None:
    async def run(priority: str) -> Answered:
        async with AsyncEngine.load([str(write_checkpoint())]) as engine:
            body = BODIES["/v1/embeddings"] | {"priority": priority}
            return await BatchRequests(engine).answer("/v1/embeddings", body, "req_1")

    assert asyncio.run(run("normal")).status == 200
    refused = asyncio.run(run("urgent"))
    assert refused.status == 422
    assert orjson.loads(refused.body)["error"]["param"] == "priority"


def _stored(batches: Batches, endpoint: str) -> StoredFile:
    lines = (
        {"custom_id": f"r{at}", "method": "POST", "url": endpoint, "body": BODIES[endpoint]}
        for at in range(NUMBER)
    )
    contents = b"\n".join(map(orjson.dumps, lines))
    file = StoredFile(
        id="file_1", filename="in.jsonl", purpose="batch", num_bytes=len(contents), created_at=1
    )
    with batches.store.open_upload(file.id) as upload:
        upload.write(contents)
    batches.store.add_upload(file)
    return file
