"""Contents of files that are deleted while somebody asks for them."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.types import Message

from service.batches.runner import Batches
from service.batches.store import BatchStore, no_file
from service.http.file_response import ContentResponse
from tests.service.batches.folder import add_file
from tests.service.batches.routes import client_of

LARGE = bytes(range(256)) * 2000  # in several pieces


@pytest.mark.parametrize("given", [None, "bytes=0-3", "bytes=0-3,8-9"])
def test_a_file_that_is_deleted_before_it_is_opened_is_not_found(
    store: BatchStore, batches: Batches, monkeypatch: pytest.MonkeyPatch, given: str | None
) -> None:
    find = store.get_contents

    def deleted_when_found(file_id: str) -> tuple[Path, os.stat_result]:
        found = find(file_id)
        store.delete_file(file_id)
        return found

    monkeypatch.setattr(store, "get_contents", deleted_when_found)
    file = add_file(store, LARGE)

    async def run() -> httpx.Response:
        async with client_of(batches) as client:
            headers = {} if given is None else {"range": given}
            return await client.get(f"/v1/files/{file.id}/content", headers=headers)

    answer = asyncio.run(run())
    assert answer.status_code == 404
    assert (answer.json()["error"]["code"], answer.json()["error"]["actual"]) == (
        "file_not_found",
        file.id,
    )


def test_a_file_that_cannot_be_opened_is_a_failure_of_the_storage(
    store: BatchStore, batches: Batches
) -> None:
    file = add_file(store, LARGE)
    path = store.path(file.id)
    path.unlink()
    path.mkdir()  # what not even root can read as a file

    async def run() -> httpx.Response:
        async with client_of(batches) as client:
            return await client.get(f"/v1/files/{file.id}/content")

    answer = asyncio.run(run())
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "storage_failure")


@pytest.mark.parametrize("given", [None, b"bytes=9-400000"])
def test_a_download_goes_on_when_its_file_is_deleted(
    store: BatchStore, given: bytes | None
) -> None:
    file = add_file(store, LARGE)
    path, status = store.get_contents(file.id)
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)
        if len(sent) == 2:
            store.delete_file(file.id)

    async def receive() -> Message:
        await asyncio.sleep(60)
        return {"type": "http.disconnect"}

    response = ContentResponse(path, gone=no_file(file.id), stat_result=status)
    scope: dict[str, Any] = {
        "type": "http",
        "method": "GET",
        "headers": [] if given is None else [(b"range", given)],
    }
    asyncio.run(response(scope, receive, send))
    body = b"".join(message.get("body", b"") for message in sent)
    assert body == (LARGE if given is None else LARGE[9:400_001])
    assert dict(sent[0]["headers"])[b"content-length"] == str(len(body)).encode()
    assert not path.exists()
