"""How a batch's files are read: off the event loop, within bounds, and the same at any size."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest

from service.batches.answers import Answered, answer_line, append, expired_line
from service.batches.reading import BatchReader
from service.batches.records import Batch, Counts
from service.batches.runner import Batches
from service.batches.store import BatchStore
from service.batches.usage import Amount
from service.body_budget import LARGE_BODY_BYTES
from service.metrics import Metrics
from tests.service.batches.folder import LIMITS, add_batch, add_file, answer_ok, line, lines

IDS = [101, 2009, 102, 30_000] * 150_000
WIDE = replace(LIMITS, line_bytes=2**25, stored=Amount(2**27, 100))


@pytest.fixture
def reader() -> Iterator[BatchReader]:
    found = BatchReader()
    yield found
    found.close()


async def run_file(folder: Path, contents: bytes, answer: Any) -> tuple[Batch, float]:
    """The batch over it when it has finished, and the longest pause of the event loop."""
    store = BatchStore(folder)
    batches = Batches(store, answer, WIDE, Metrics().batch_api)
    batch = await batches.create(
        add_file(store, contents).id, "/v1/embeddings", metadata=None, output_expires_s=None
    )
    longest, last = 0.0, time.perf_counter()
    async with asyncio.timeout(60), batches:
        while not (found := await batches.get(batch.id)).is_finished:
            await asyncio.sleep(0.001)
            now = time.perf_counter()
            longest, last = max(longest, now - last), now
    return found, longest


@pytest.mark.long
def test_a_huge_line_leaves_the_event_loop_free(tmp_path: Path) -> None:
    """Three million ids keep the interpreter to themselves for longer than any pause seen here."""
    contents = line("r1", {"input": [IDS] * 5})
    given: list[Any] = []

    async def answer(endpoint: str, body: Any, request_id: str) -> Answered:
        given[:] = body["input"]
        return await answer_ok(endpoint, body, request_id)

    started = time.perf_counter()
    orjson.loads(contents)
    here_s = time.perf_counter() - started
    pauses = []
    for attempt in range(2):
        found, pause_s = asyncio.run(run_file(tmp_path / f"b{attempt}", contents, answer))
        assert (found.status, found.counts.completed) == ("completed", 1)
        pauses.append(pause_s)
    assert min(pauses) < here_s / 2
    assert [ids.tolist() for ids in given] == [IDS] * 5


def test_a_huge_answer_leaves_the_event_loop_free(tmp_path: Path) -> None:
    """It is written as it is: neither copied, nor read again before the batch is complete."""
    body = orjson.dumps({"data": [[0.123456789] * 400] * 8000, "usage": {"total_tokens": 7}})

    async def answer(endpoint: str, _: Any, request_id: str) -> Answered:
        return Answered(200, body, 7, request_id)

    started = time.perf_counter()
    orjson.loads(body)
    here_s = time.perf_counter() - started
    pauses = []
    for attempt in range(2):
        contents = line("r1", {"input": "x"})
        found, pause_s = asyncio.run(run_file(tmp_path / f"b{attempt}", contents, answer))
        assert found.counts == Counts(total=1, completed=1, tokens=7)
        pauses.append(pause_s)
    assert min(pauses) < here_s / 2


def test_large_lines_are_read_as_small_ones(tmp_path: Path, reader: BatchReader) -> None:
    path = tmp_path / "in"
    padding = "x" * LARGE_BODY_BYTES
    path.write_bytes(
        lines(
            [
                line("small", {"input": [7] * 20_000}),
                b"  ",
                line("large", {"input": [[7] * 20_000, "text"], "user": padding}),
            ]
        )
    )
    small, large = reader.requests(path, "/v1/embeddings")
    assert (small.custom_id, large.custom_id) == ("small", "large")
    assert isinstance(small.body["input"], np.ndarray)
    assert large.body["input"][0].tolist() == [7] * 20_000
    assert (large.body["input"][1], large.body["user"]) == ("text", padding)
    checked = reader.check(path, "/v1/embeddings", max_requests=9, max_line_bytes=2**22)
    assert (checked.total, checked.errors) == (2, ())


def test_lines_have_at_most_so_many_bytes(tmp_path: Path, reader: BatchReader) -> None:
    path, limit = tmp_path / "in", 200
    exact = line("exact", {"input": "x" * (limit - len(line("exact", {"input": ""})))})
    longer = line("longer", {"input": "x" * (limit - len(line("longer", {"input": ""})) + 1)})
    for end in (b"", b"\n", b"\r\n"):
        path.write_bytes(exact + end)
        found = reader.check(path, "/v1/embeddings", max_requests=9, max_line_bytes=limit)
        assert (found.total, found.errors) == (1, ())
        path.write_bytes(exact + b"\n" + longer + end)
        found = reader.check(path, "/v1/embeddings", max_requests=9, max_line_bytes=limit)
        assert [(error.code, error.line) for error in found.errors] == [("line_too_long", 2)]


def test_of_a_line_that_is_too_long_the_rest_is_not_read(
    tmp_path: Path, reader: BatchReader
) -> None:
    """A file without line ends could fill the memory."""
    path = tmp_path / "in"
    with path.open("wb") as file:
        file.write(b"[")
        file.truncate(2**40)  # a hole: nothing of it is on the disk
    found = reader.check(path, "/v1/embeddings", max_requests=9, max_line_bytes=2**20)
    assert [error.code for error in found.errors] == ["line_too_long"]


@pytest.mark.long
def test_a_line_of_too_many_values_is_refused(tmp_path: Path, reader: BatchReader) -> None:
    path = tmp_path / "in"
    empty = line("a", {"input": "@"})
    path.write_bytes(empty.replace(b'"@"', b"[" + b"[]," * 2_000_000 + b"[]]"))
    found = reader.check(path, "/v1/embeddings", max_requests=9, max_line_bytes=2**25)
    assert [(error.code, error.line) for error in found.errors] == [("too_many_values", 1)]
    path.write_bytes(empty.replace(b'"@"', b"[" + b"[]," * 300_000 + b"[]]"))
    found = reader.check(path, "/v1/embeddings", max_requests=9, max_line_bytes=2**25)
    assert [(error.code, error.line) for error in found.errors] == [("too_many_lists", 1)]
    path.write_bytes(empty.replace(b'"@"', b"[" + b"7," * 2_500_000 + b"7]"))
    assert not reader.check(path, "/v1/embeddings", max_requests=9, max_line_bytes=2**25).errors


@pytest.mark.parametrize("padding", [0, LARGE_BODY_BYTES])
def test_the_answers_so_far_are_found(tmp_path: Path, reader: BatchReader, padding: int) -> None:
    store = BatchStore(tmp_path / "b")
    batch = add_batch(store, "file_i", counts=Counts(total=4))
    output, errors = store.path(batch.output_file_id), store.path(batch.error_file_id)
    nothing = {output: 0, errors: 0}
    assert reader.progress(batch, output, errors) == (set(), Counts(total=4), nothing)
    body = orjson.dumps({"data": "x" * padding, "usage": {"total_tokens": 5}})
    for name in ('with "body":"body" in it', "r2"):
        append(output, *answer_line(name, Answered(200, body, 5, "req_1")))
    whole = output.read_bytes()
    append(output, *answer_line("torn", Answered(200, body, 5, "req_1"))[:2])
    append(errors, expired_line("r3"))
    answered, counts, num_bytes = reader.progress(batch, output, errors)
    assert answered == {'with "body":"body" in it', "r2", "r3"}
    assert counts == Counts(total=4, completed=2, failed=1, tokens=10)
    assert num_bytes == {output: len(whole), errors: errors.stat().st_size}
    [first, _] = map(orjson.loads, whole.splitlines())
    assert first["response"] == {
        "status_code": 200,
        "request_id": "req_1",
        "body": orjson.loads(body),
    }
    assert first["error"] is None
