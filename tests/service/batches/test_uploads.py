"""Files on their way to a disk that is slow, full, or left alone by the caller."""

from __future__ import annotations

import asyncio
import io
import threading
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from service.batches.runner import Batches
from service.batches.store import BatchStore
from service.batches.usage import Amount
from service.environment import load_settings
from service.errors import BodyTooLarge
from service.http.upload import FormReader
from service.metrics import Metrics
from tests.service.batches.folder import (
    LIMITS,
    answer_ok,
    bytes_in,
    files_of_at_most,
)
from tests.service.batches.routes import END, FORM, HEAD, client_of, upload


class HeldDisk:
    """A disk on which what is written waits until somebody lets it go on."""

    def __init__(self) -> None:
        self.is_writing, self.may_write = threading.Event(), threading.Event()


class HeldFile(io.FileIO):
    def __init__(self, path: Path, disk: HeldDisk) -> None:
        super().__init__(path, "wb")
        self._disk = disk

    def write(self, data: Any) -> int:
        self._disk.is_writing.set()
        if not self._disk.may_write.wait(20):
            raise OSError("nobody let it go on")
        return super().write(data)


@pytest.fixture
def disk(store: BatchStore, monkeypatch: pytest.MonkeyPatch) -> HeldDisk:
    held = HeldDisk()

    def open_upload(file_id: str) -> HeldFile:
        return HeldFile(store.path(file_id + ".upload"), held)

    monkeypatch.setattr(store, "open_upload", open_upload)
    monkeypatch.setattr("service.http.upload._PIECE_BYTES", 1)
    return held


@pytest.mark.parametrize("name", ["é.jsonl", "日本語.jsonl", "😀 a;b.jsonl"])
def test_a_file_keeps_its_name_in_any_script(batches: Batches, name: str) -> None:
    async def run() -> httpx.Response:
        async with client_of(batches) as client:
            form: dict[str, Any] = {"files": {"file": (name, b"x")}, "data": {"purpose": "batch"}}
            return await client.post("/v1/files", **form)

    answer = asyncio.run(run())
    assert answer.json().get("filename") == name, answer.text


def names_in(store: BatchStore) -> list[str]:
    return [path.name for path in store.path("x").parent.iterdir()]


def test_a_slow_disk_does_not_hold_up_the_event_loop(
    store: BatchStore, batches: Batches, disk: HeldDisk
) -> None:
    pieces = [bytes([at]) * 1500 for at in range(4)]

    async def run() -> httpx.Response:
        async with client_of(batches) as client:
            uploading = asyncio.create_task(upload(client, *pieces))
            await asyncio.to_thread(disk.is_writing.wait)
            disk.may_write.set()  # never, if the loop waits for the disk
            return await uploading

    answer = asyncio.run(run())
    assert answer.status_code == 200, answer.text
    assert store.path(answer.json()["id"]).read_bytes() == b"".join(pieces)


@pytest.mark.parametrize("leave", ["is cancelled", "runs out of time"])
def test_nothing_is_left_of_an_upload_whose_caller_leaves_while_it_is_written(
    store: BatchStore, batches: Batches, disk: HeldDisk, leave: str
) -> None:
    async def run() -> None:
        async with client_of(batches) as client:
            if leave == "runs out of time":
                client.headers["x-request-timeout-ms"] = "100"
            uploading = asyncio.create_task(upload(client, b"x" * LIMITS.file_bytes))
            await asyncio.to_thread(disk.is_writing.wait)
            if leave == "is cancelled":
                uploading.cancel()
            await asyncio.wait({uploading}, timeout=0.2)
            assert len(names_in(store)) == 1  # nobody closes what is being written
            disk.may_write.set()
            await asyncio.wait({uploading})
            assert names_in(store) == []
            if leave == "runs out of time":
                answer = uploading.result()
                assert (answer.status_code, answer.json()["error"]["limit"]) == (504, 0.1)
            assert store.usage.taken.num_bytes == 0

    asyncio.run(run())


def test_a_full_disk_is_told_and_nothing_is_left(store: BatchStore, batches: Batches) -> None:
    async def run() -> httpx.Response:
        async with client_of(batches) as client:
            with files_of_at_most(4096):
                return await upload(client, b"x" * 9000)

    answer = asyncio.run(run())
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "storage_failure")
    assert names_in(store) == []
    assert store.usage.taken.num_bytes == 0


async def silent() -> AsyncIterator[bytes]:
    yield HEAD
    await asyncio.Event().wait()


def test_callers_that_announce_much_and_send_nothing_keep_nobody_out(store: BatchStore) -> None:
    """At the limits that a server has by default, of which 51 of the largest files fill the
    room."""
    settings = load_settings()
    largest = settings.max_file_bytes
    limits = replace(
        LIMITS,
        file_bytes=largest,
        stored=Amount(settings.max_stored_bytes, settings.max_stored_files),
    )
    batches = Batches(store, answer_ok, limits, Metrics().batch_api)

    async def run() -> None:
        async with client_of(batches) as client:
            headers = {**FORM, "content-length": str(largest)}
            idle = [
                asyncio.create_task(client.post("/v1/files", content=silent(), headers=headers))
                for _ in range(60)
            ]
            async with asyncio.timeout(20):
                while store.usage.taken.num_bytes < len(HEAD) * len(idle):
                    await asyncio.sleep(0.01)
            for task in idle[:20]:
                task.cancel()
            honest = await upload(client, b"x" * 300_000)
            assert honest.status_code == 200, honest.text
            assert store.usage.taken.num_bytes == len(HEAD) * 40
            for task in idle:
                task.cancel()
            await asyncio.wait(idle)
            assert names_in(store) == [honest.json()["id"]]
            assert store.usage.taken.num_bytes == 0

    asyncio.run(run())


def test_a_caller_who_sends_no_more_loses_its_place(store: BatchStore, batches: Batches) -> None:
    async def run() -> httpx.Response:
        settings = load_settings().model_copy(update={"body_timeout_s": 0.1})
        async with client_of(batches, settings) as client:
            headers = {**FORM, "content-length": "10000"}
            return await client.post("/v1/files", content=silent(), headers=headers)

    answer = asyncio.run(run())
    assert (answer.status_code, answer.json()["error"]["limit"]) == (408, 0.1)
    assert names_in(store) == []
    assert store.usage.taken.num_bytes == 0


def test_an_upload_that_cannot_fit_is_refused_before_it_is_sent(
    store: BatchStore, batches: Batches
) -> None:
    async def sent() -> AsyncIterator[bytes]:
        raise AssertionError("nobody asks for the body")
        yield b""

    async def run() -> httpx.Response:
        async with client_of(batches) as client:
            for _ in range(2):
                await upload(client, b"x" * 9_000)
            headers = {**FORM, "content-length": "9000"}
            return await client.post("/v1/files", content=sent(), headers=headers)

    error = asyncio.run(run()).json()["error"]
    assert (error["code"], error["limit"]) == ("storage_full", LIMITS.stored.num_bytes)


def test_few_threads_write_uploads_and_no_others_wait_for_them(
    batches: Batches, disk: HeldDisk
) -> None:
    """Threads that all share would be taken by a few uploads."""

    async def run() -> None:
        async with client_of(batches) as client:
            uploads = [asyncio.create_task(upload(client, b"x")) for _ in range(40)]
            await asyncio.to_thread(disk.is_writing.wait)
            async with asyncio.timeout(10):
                assert await asyncio.to_thread(int) == 0
            for task in uploads:
                task.cancel()
            disk.may_write.set()
            await asyncio.wait(uploads)

    asyncio.run(run())


@pytest.mark.parametrize(
    "pieces",
    [
        pytest.param([HEAD, b"x", END, *[b"z" * 10_000] * 20], id="after the end"),
        pytest.param(
            [b"--b\r\n", *[b"a: b\r\n\r\n" + b"z" * 3_000 + b"\r\n--b\r\n"] * 70], id="in fields"
        ),
    ],
)
def test_what_is_no_file_takes_no_room_from_others(
    store: BatchStore, batches: Batches, pieces: list[bytes]
) -> None:
    async def run() -> tuple[httpx.Response, int]:
        most = 0

        async def sent() -> AsyncIterator[bytes]:
            nonlocal most
            for piece in pieces:
                yield piece
                most = max(most, store.usage.taken.num_bytes)

        async with client_of(batches) as client:
            return await client.post("/v1/files", content=sent(), headers=FORM), most

    batches.uploads._limit = Amount(10**9, 100)
    answer, most = asyncio.run(run())
    assert answer.json()["error"]["code"] in ("file_too_large", "invalid_form")
    assert most <= LIMITS.file_bytes + 64 * 1024
    assert store.usage.taken.num_bytes == store.usage.kept.num_bytes == 0


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            b'filename="a"',
            b'filename="caf\xe9"',
            "the name of the file is not UTF-8: byte 0xe9 at 3",
        ),
        (b"batch", b"b\xe9", "field purpose is not UTF-8: byte 0xe9 at 1"),
        (b'"purpose"', b'"p\xe9"', "the name of a field is not UTF-8: byte 0xe9 at 1"),
    ],
)
def test_a_form_that_is_not_utf_8_is_refused(
    batches: Batches, old: bytes, new: bytes, message: str
) -> None:
    """Its letters would be replaced."""
    form = (HEAD + b"x" + END).replace(old, new)

    async def run() -> httpx.Response:
        async with client_of(batches) as client:
            return await client.post("/v1/files", content=form, headers=FORM)

    error = asyncio.run(run()).json()["error"]
    assert (error["code"], error["message"]) == ("invalid_utf8", message)


@pytest.mark.parametrize(
    "path", ["/v1/files?limit=1&limit=2", "/v1/batches?after=a&after=b", "/v1/benchmarks?a=1&a=2"]
)
def test_a_field_that_is_twice_in_a_query_is_refused(batches: Batches, path: str) -> None:
    async def run() -> httpx.Response:
        async with client_of(batches) as client:
            return await client.get(path)

    answer = asyncio.run(run())
    assert (answer.status_code, answer.json()["error"]["code"]) == (422, "repeated_field")


def test_a_field_that_appears_twice_is_refused(batches: Batches) -> None:
    field = b'\r\n--b\r\ncontent-disposition: form-data; name="purpose"\r\n\r\nvision'

    async def run() -> httpx.Response:
        async with client_of(batches) as client:
            return await upload(client, b"x", field)

    answer = asyncio.run(run())
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["limit"]) == (400, "invalid_form", 1)
    assert answer.json()["error"]["param"] == "purpose"


def test_an_expiry_of_many_digits_is_refused_in_few_words(batches: Batches) -> None:
    async def run() -> httpx.Response:
        async with client_of(batches) as client:
            expiry = {"expires_after[anchor]": "created_at", "expires_after[seconds]": "9" * 4_000}
            data = {"purpose": "batch", **expiry}
            return await client.post("/v1/files", files={"file": b"x"}, data=data)

    answer = asyncio.run(run())
    assert (answer.status_code, answer.json()["error"]["limit"]) == (400, 30 * 24 * 3600)
    assert len(answer.content) < 1_000


def test_a_file_over_the_limit_is_refused_while_it_arrives() -> None:
    read = 0

    async def pieces() -> AsyncIterator[bytes]:
        nonlocal read
        yield b'--b\r\ncontent-disposition: form-data; name="file"; filename="a"\r\n\r\n'
        for _ in range(1000):
            read += 100
            yield b"x" * 100

    async def write(data: bytearray) -> None:
        raise AssertionError("the file is too large before there is enough to write")

    async def run() -> None:
        form = FormReader("multipart/form-data; boundary=b", write, 1000)
        with pytest.raises(BodyTooLarge) as caught:
            await form.read(pieces())
        assert (caught.value.code, caught.value.limit) == ("file_too_large", 1000)

    asyncio.run(run())
    assert read < 2000


def test_an_upload_that_was_cut_off_leaves_nothing(tmp_path: Path) -> None:
    store = BatchStore(tmp_path / "b")
    store.open_upload("file_x").close()
    store.close()
    store = BatchStore(tmp_path / "b")
    assert bytes_in(store) == store.usage.kept.num_bytes == 0
    store.close()
