"""Files and batches put into a folder of the Batch API without a server."""

from __future__ import annotations

import asyncio
import resource
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import orjson

from service.batches.answers import Answered
from service.batches.records import Batch, StoredFile, new_id
from service.batches.run import BatchLimits
from service.batches.runner import Batches
from service.batches.store import BatchStore
from service.batches.usage import Amount

LIMITS = BatchLimits(
    file_bytes=10_000,
    stored=Amount(20_000, 100),
    stored_batches=100,
    batch_requests=50,
    open_batches=2,
    line_bytes=5_000,
    kept_s=None,
)


def add_file(store: BatchStore, contents: bytes, **fields: Any) -> StoredFile:
    file = StoredFile(
        **{
            "id": new_id("file"),
            "filename": "in.jsonl",
            "purpose": "batch",
            "num_bytes": len(contents),
            "created_at": 1,
            **fields,
        }
    )
    with store.open_upload(file.id) as upload:
        upload.write(contents)
    store.add_upload(file)
    return file


def add_batch(store: BatchStore, input_file_id: str, **fields: Any) -> Batch:
    batch = Batch(
        **{
            "id": new_id("batch"),
            "endpoint": "/v1/embeddings",
            "input_file_id": input_file_id,
            "output_file_id": new_id("file"),
            "error_file_id": new_id("file"),
            "created_at": 1,
            "expires_at": int(time.time()) + 60,
            **fields,
        }
    )
    store.save(batch)
    return batch


def line(custom_id: str, body: Any) -> bytes:
    return orjson.dumps(
        {"custom_id": custom_id, "method": "POST", "url": "/v1/embeddings", "body": body}
    )


def bytes_in(store: BatchStore) -> int:
    """Of all contents on the disk, also of uploads that still arrive."""
    num_bytes = 0
    for path in store.path("x").parent.iterdir():
        with suppress(FileNotFoundError):  # of an upload that was refused meanwhile
            num_bytes += path.stat().st_size
    return num_bytes


def requests(number: int) -> bytes:
    return lines(line(f"r{at}", {"input": "x"}) for at in range(number))


def lines(texts: Iterable[bytes]) -> bytes:
    return b"\n".join(texts)


async def answer_ok(endpoint: str, body: Any, request_id: str) -> Answered:
    return Answered(200, b'{"usage":{"total_tokens":3}}', 3, request_id)


class HeldAnswer:
    """Answers when it may."""

    def __init__(self) -> None:
        self.is_asked, self.may_be_given = asyncio.Event(), asyncio.Event()

    async def __call__(self, endpoint: str, body: Any, request_id: str) -> Answered:
        self.is_asked.set()
        await self.may_be_given.wait()
        return await answer_ok(endpoint, body, request_id)


async def until_finished(batches: Batches, batch_id: str) -> Batch:
    async with asyncio.timeout(30):
        while not (found := await batches.get(batch_id)).is_finished:
            await asyncio.sleep(0.01)
    return found


@contextmanager
def files_of_at_most(num_bytes: int) -> Iterator[None]:
    """The system then refuses to write more, as a full disk does."""
    before, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, most))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (before, most))
