"""OpenAI's Batch API by its released client, against a real server, killed while it works too."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
import pytest

from service.http.schemas.responses.batches import BatchAnswer, BatchList, FileAnswer, FileList
from tests.service.conftest import RunningServer, StartServer
from tests.service.outside import vectors_of

ENDPOINT: Any = "/v1/embeddings"
FINISHED = ("completed", "failed", "cancelled", "expired")


@pytest.fixture
def client(server: RunningServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.http_url}/v1", api_key="unused", max_retries=0) as client:
        yield client


def request_line(custom_id: str, body: Any, url: str = ENDPOINT) -> dict[str, Any]:
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": body}


def as_file(lines: list[Any]) -> tuple[str, bytes]:
    texts = (line if isinstance(line, str) else json.dumps(line) for line in lines)
    return "requests.jsonl", "\n".join(texts).encode()


def start(client: openai.OpenAI, lines: list[Any], endpoint: Any = ENDPOINT) -> Any:
    file = client.files.create(file=as_file(lines), purpose="batch")
    return client.batches.create(
        input_file_id=file.id, endpoint=endpoint, completion_window="24h", metadata={"by": "a test"}
    )


def wait_for(client: openai.OpenAI, batch_id: str, *, timeout_s: float = 120) -> Any:
    deadline = time.monotonic() + timeout_s
    while (batch := client.batches.retrieve(batch_id)).status not in FINISHED:
        assert time.monotonic() < deadline, batch
        time.sleep(0.1)
    return batch


def num_completed(client: openai.OpenAI, batch_id: str) -> int:
    counts = client.batches.retrieve(batch_id).request_counts
    return 0 if counts is None else counts.completed


def answers_in(client: openai.OpenAI, file_id: str) -> dict[str, Any]:
    lines = [json.loads(line) for line in client.files.content(file_id).text.splitlines()]
    found = {line["custom_id"]: line for line in lines}
    assert len(found) == len(lines)
    return found


def test_openai_client_from_upload_to_answers(client: openai.OpenAI, http: httpx.Client) -> None:
    texts = [f"text number {number}" for number in range(40)]
    lines = [
        request_line(f"r{number}", {"model": "default", "input": text})
        for number, text in enumerate(texts)
    ]
    lines += [
        request_line("empty", {"model": "default", "input": ""}),
        request_line("typo", {"model": "default", "input": "x", "inputs": "x"}),
        request_line("other", {"model": "no-such-model", "input": "x"}),
        request_line("bits", {"model": "default", "input": "x", "output_dtype": "ubinary"}),
    ]
    batch = wait_for(client, start(client, lines).id)

    assert (batch.status, batch.metadata) == ("completed", {"by": "a test"})
    counts = batch.request_counts
    assert (counts.total, counts.completed, counts.failed) == (44, 41, 3)
    answers = answers_in(client, batch.output_file_id)
    bodies = [answers[f"r{number}"]["response"]["body"] for number in range(40)]
    expected = np.array(vectors_of(http, input=texts, model="default"))
    assert np.array([body["data"][0]["embedding"] for body in bodies]) == pytest.approx(
        expected, abs=2e-6
    )
    assert len(answers["bits"]["response"]["body"]["data"][0]["embedding"]) == 48
    assert batch.usage.total_tokens == sum(
        line["response"]["body"]["usage"]["total_tokens"] for line in answers.values()
    )
    failures = answers_in(client, batch.error_file_id)
    assert {
        name: (line["response"]["status_code"], line["response"]["body"]["error"]["code"])
        for name, line in failures.items()
    } == {
        "empty": (400, "empty_text"),
        "typo": (422, "unknown_field"),
        "other": (404, "model_not_found"),
    }


@pytest.mark.parametrize(
    ("endpoint", "body", "field"),
    [
        ("/v1/documents", {"text": "One. Two.", "chunking": {"type": "sentences"}}, "chunks"),
        ("/v1/rerank", {"query": "one", "documents": ["One.", "Two."]}, "results"),
    ],
)
def test_other_routes(client: openai.OpenAI, endpoint: str, body: Any, field: str) -> None:
    batch = wait_for(client, start(client, [request_line("a", body, endpoint)], endpoint).id)
    [answer] = answers_in(client, batch.output_file_id).values()
    assert len(answer["response"]["body"][field]) == 2


def test_a_document_with_a_record(client: openai.OpenAI) -> None:
    lines = [
        request_line("record", {"text": "One. Two.", "record": True}, "/v1/documents"),
        request_line("fold", {"text": "One. Two.", "fold": True}, "/v1/documents"),
        request_line("deep", {"text": "One.", "x": nested(400)}, "/v1/documents"),
    ]
    batch = wait_for(client, start(client, lines, "/v1/documents").id)
    [answer] = answers_in(client, batch.output_file_id).values()
    assert answer["response"]["body"]["record"]
    failures = answers_in(client, batch.error_file_id)
    for name in ("fold", "deep"):
        assert failures[name]["response"]["body"]["error"]["code"] == "unknown_field", failures


def nested(depth: int) -> Any:
    return [] if not depth else [nested(depth - 1)]


def test_files_are_listed_read_and_deleted(client: openai.OpenAI, http: httpx.Client) -> None:
    name, contents = as_file([request_line("a", {"input": "x"})])
    files = [
        client.files.create(
            file=(name, contents),
            purpose="batch",
            expires_after={"anchor": "created_at", "seconds": 3600},
        )
        for _ in range(3)
    ]
    assert files[0].expires_at == files[0].created_at + 3600
    assert client.files.retrieve(files[0].id) == files[0]
    assert client.files.content(files[0].id).content == contents
    assert client.files.wait_for_processing(files[0].id).bytes == len(contents)
    pages = client.files.list(limit=2, purpose="batch").iter_pages()
    listed = [file.id for page in pages for file in page.data]
    assert listed[:3] == [file.id for file in reversed(files)]
    FileList.model_validate_json(http.get("/v1/files?limit=1").content, strict=True)
    FileAnswer.model_validate_json(http.get(f"/v1/files/{files[0].id}").content, strict=True)

    for file in files:
        assert client.files.delete(file.id).deleted
    with pytest.raises(openai.NotFoundError, match="no file"):
        client.files.content(files[0].id)


@pytest.mark.parametrize(
    ("given", "status", "code"),
    [
        ("bytes=0-3", 206, None),
        ("bytes=3-1", 400, "invalid_range"),
        ("lines=1-2", 400, "invalid_range"),
        ("bytes=999999-", 416, "range_not_satisfiable"),
    ],
)
def test_ranges_of_contents(
    client: openai.OpenAI, http: httpx.Client, given: str, status: int, code: str | None
) -> None:
    name, contents = as_file([request_line("a", {"input": "x"})])
    file = client.files.create(file=(name, contents), purpose="batch")
    answer = http.get(f"/v1/files/{file.id}/content", headers={"range": given})
    assert answer.status_code == status
    if code is None:
        assert answer.content == contents[:4]
        return
    error = answer.json()["error"]
    assert (error["code"], error["param"], error["actual"]) == (code, "Range", given)
    if status == 416:
        assert error["limit"] == len(contents)
        assert answer.headers["content-range"] == f"bytes */{len(contents)}"


def test_batches_are_listed(client: openai.OpenAI, http: httpx.Client) -> None:
    batches = [start(client, [request_line("a", {"input": "x"})]) for _ in range(3)]
    pages = client.batches.list(limit=2).iter_pages()
    listed = [batch.id for page in pages for batch in page.data]
    assert listed[:3] == [batch.id for batch in reversed(batches)]
    for batch in batches:
        wait_for(client, batch.id)
    BatchList.model_validate_json(http.get("/v1/batches").content, strict=True)
    answer = http.get(f"/v1/batches/{batches[0].id}")
    BatchAnswer.model_validate_json(answer.content, strict=True)


@pytest.mark.parametrize(
    ("lines", "code", "line"),
    [
        (["{"], "invalid_json_line", 1),
        (['{"custom_id": "a", "body": {"model": "a", "model": "b"}}'], "repeated_field", 1),
        (["[]"], "invalid_request", 1),
        ([""], "empty_file", None),
        ([request_line("a", {}), request_line("a", {})], "duplicate_custom_id", 2),
        ([request_line("", {})], "missing_required_parameter", 1),
        ([request_line("a", {}, "/v1/models")], "invalid_url", 1),
        ([request_line("a", "x")], "invalid_request", 1),
        ([{**request_line("a", {}), "method": "GET"}], "invalid_method", 1),
    ],
)
def test_files_that_are_no_requests(
    client: openai.OpenAI, lines: list[Any], code: str, line: int | None
) -> None:
    batch = wait_for(client, start(client, lines).id)
    assert batch.status == "failed"
    [error] = batch.errors.data
    assert (error.code, error.line) == (code, line)
    assert batch.output_file_id is None


@pytest.mark.parametrize(
    ("fields", "status", "code"),
    [
        ({"input_file_id": "file_none"}, 404, "file_not_found"),
        ({"endpoint": "/v1/chat/completions"}, 400, "invalid_input"),
        ({"completion_window": "1h"}, 422, "invalid_field"),
        ({"metadata": {"a": "x" * 513}}, 422, "invalid_field"),
        ({"output_expires_after": {"anchor": "created_at", "seconds": 1}}, 400, "invalid_input"),
    ],
)
def test_refused_batches(
    client: openai.OpenAI, http: httpx.Client, fields: dict[str, Any], status: int, code: str
) -> None:
    file = client.files.create(file=as_file([request_line("a", {"input": "x"})]), purpose="batch")
    body = {"input_file_id": file.id, "endpoint": ENDPOINT, "completion_window": "24h", **fields}
    answer = http.post("/v1/batches", json=body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code), answer.text


@pytest.mark.parametrize(
    ("form", "status", "code"),
    [
        ({"data": {"purpose": "batch"}, "files": {"other": ("a", b"x")}}, 422, "missing_field"),
        ({"data": {"purpose": "vision"}, "files": {"file": ("a", b"x")}}, 400, "invalid_purpose"),
        ({"data": {"purpose": "batch", "z": "1"}, "files": {"file": b"x"}}, 400, "unknown_field"),
        ({"json": {}}, 415, "unsupported_media_type"),
        (
            {
                "content": b"--b\r\nbroken",
                "headers": {"content-type": "multipart/form-data; boundary=b"},
            },
            400,
            "invalid_form",
        ),
        (
            {
                "content": b"",
                "headers": {"content-type": f"multipart/form-data; boundary={'b' * 300}"},
            },
            400,
            "invalid_form",
        ),
    ],
)
def test_refused_uploads(http: httpx.Client, form: Any, status: int, code: str) -> None:
    answer = http.post("/v1/files", **form)
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code), answer.text


SLOW = "All happy families are alike, each unhappy one in its own way. " * 30
"""Some 450 tokens: a batch of many such texts takes a while."""


def many_lines(number: int) -> list[Any]:
    return [
        request_line(f"r{at}", {"model": "default", "input": f"{at} {SLOW}"})
        for at in range(number)
    ]


def test_a_cancelled_batch_keeps_its_answers(client: openai.OpenAI) -> None:
    batch = start(client, many_lines(120))
    while not num_completed(client, batch.id):
        time.sleep(0.05)
    with pytest.raises(openai.BadRequestError, match="not finished"):
        client.files.delete(batch.input_file_id)
    assert client.batches.cancel(batch.id).status == "cancelling"
    cancelled = wait_for(client, batch.id)

    assert cancelled.status == "cancelled"
    assert 0 < cancelled.request_counts.completed < 120
    answers = answers_in(client, cancelled.output_file_id)
    assert len(answers) == cancelled.request_counts.completed
    with pytest.raises(openai.BadRequestError, match="cancelled"):
        client.batches.cancel(batch.id)


@pytest.mark.long
def test_a_killed_servers_batch_is_resumed(start_server: StartServer, tmp_path: Path) -> None:
    settings = {"LLN_MODELS": "default", "LLN_BATCH_FOLDER": str(tmp_path / "batches")}
    first = start_server(**settings)
    with openai.OpenAI(base_url=f"{first.http_url}/v1", api_key="unused") as client:
        batch = start(client, many_lines(40))
        while num_completed(client, batch.id) < 3:
            time.sleep(0.02)
    first.process.kill()
    first.process.wait()
    [output] = [
        path for path in (tmp_path / "batches" / "files").iterdir() if b"response" in _head(path)
    ]
    before = output.read_bytes()
    before = before[: before.rfind(b"\n") + 1]
    with output.open("ab") as file:
        file.write(b'{"custom_id":"r39","respon')  # as if it had been killed while it wrote

    second = start_server(**settings)
    with openai.OpenAI(base_url=f"{second.http_url}/v1", api_key="unused") as client:
        resumed = wait_for(client, batch.id)
        assert resumed.status == "completed"
        assert resumed.request_counts.completed == 40
        assert resumed.usage.total_tokens > 40 * 300
        contents = client.files.content(resumed.output_file_id).content
        assert contents.startswith(before)  # what was answered before is not answered again
        assert set(answers_in(client, resumed.output_file_id)) == {f"r{at}" for at in range(40)}


def _head(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(200)
