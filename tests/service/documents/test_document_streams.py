"""POST /v1/documents as a stream: text that is sent in pieces, and events of the answer."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import httpx
import numpy as np
import pytest

MIXED_TEXT = "# Größe\n\nNaïve 😀 e\u0301 שלום. 日本語。 More words.\n\n## Sub\n\nThe end.\n\n" * 20
PLAIN = {"content-type": "text/plain; charset=utf-8"}
EVENTS = {"accept": "application/x-ndjson"}


class Upload:
    """A request whose body is sent by hand, so that both sides can be watched at once."""

    def __init__(self, connection: socket.socket, headers: dict[str, str]) -> None:
        self._connection = connection
        self._answer = connection.makefile("rb")
        lines = ["POST /v1/documents HTTP/1.1", "host: test", "transfer-encoding: chunked"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        connection.sendall("\r\n".join([*lines, "", ""]).encode())

    def send(self, piece: bytes) -> None:
        self._connection.sendall(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")

    def end(self) -> None:
        self._connection.sendall(b"0\r\n\r\n")

    def close(self) -> None:
        self._answer.close()

    def status(self) -> int:
        status = int(self._answer.readline().split()[1])
        while self._answer.readline().strip():
            pass
        return status

    def event(self) -> dict[str, Any]:
        """The next line of an answer that comes in chunks of one line."""
        size = int(self._answer.readline(), 16)
        event: dict[str, Any] = json.loads(self._answer.read(size))
        self._answer.readline()
        return event


@contextmanager
def upload(server: Any, **headers: str) -> Iterator[Upload]:
    address = urlsplit(server.http_url)
    with socket.create_connection((address.hostname, address.port), timeout=60) as connection:
        given = PLAIN | {name.replace("_", "-"): value for name, value in headers.items()}
        call = Upload(connection, given)
        try:
            yield call
        finally:
            call.close()


def events_of(response: httpx.Response) -> list[dict[str, Any]]:
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "application/x-ndjson"
    return [json.loads(line) for line in response.text.splitlines()]


def cancelled(http: httpx.Client) -> float:
    lines = http.get("/metrics").text.splitlines()
    start = 'lln_requests_total{code="cancelled",method="POST /v1/documents"'
    return sum(float(line.split()[-1]) for line in lines if line.startswith(start))


@pytest.mark.parametrize("size", [1, 1_000, 1_048_576])
def test_a_text_sent_in_pieces_gives_the_answer_of_the_whole(http: httpx.Client, size: int) -> None:
    data = MIXED_TEXT.encode()
    body = (data[start : start + size] for start in range(0, len(data), size))
    query = {"chunking": "sentences", "min_tokens": "10"}
    streamed = http.post("/v1/documents", params=query, content=body, headers=PLAIN)
    fields = {"text": MIXED_TEXT, "chunking": {"type": "sentences", "min_tokens": 10}}
    whole = http.post("/v1/documents", json=fields).json()
    answer = streamed.json()
    assert streamed.status_code == 200, answer
    assert list(answer) == list(whole)
    assert answer["usage"] == whole["usage"]
    for one, other in zip([answer, *answer["chunks"]], [whole, *whole["chunks"]], strict=True):
        assert float(np.array(one["vector"]) @ np.array(other["vector"])) > 0.999999
    assert [chunk["characters"] for chunk in answer["chunks"]] == [
        chunk["characters"] for chunk in whole["chunks"]
    ]
    assert len(whole["chunks"]) > 20


def test_events_of_a_json_document(http: httpx.Client) -> None:
    fields = {"text": MIXED_TEXT, "chunking": {"type": "headings"}, "encoding_format": "base64"}
    found = events_of(http.post("/v1/documents", json=fields, headers=EVENTS))
    whole = http.post("/v1/documents", json=fields).json()
    accepted, *_, result = found
    assert accepted == {
        "event": "accepted",
        "model": "default",
        "tokens": whole["accounting"]["tokens"],
    }
    assert result["event"] == "result"
    assert result["num_chunks"] == len(whole["chunks"]) == 40
    chunks = [chunk for event in found if event["event"] == "chunks" for chunk in event["chunks"]]
    assert [chunk["index"] for chunk in chunks] == list(range(40))
    assert [chunk["headings"] for chunk in chunks[:2]] == [["Größe"], ["Größe", "Sub"]]
    (last,) = [event for event in found if event["event"] == "progress"][-1:]
    assert last["tokens_done"] == last["tokens_total"]


@pytest.mark.parametrize(
    ("query", "content", "status", "code", "param"),
    [
        ("", b"", 400, "empty_text", "text"),
        ("", b"ab\xff", 400, "invalid_utf8", "text"),
        ("?dimensions=0", b"x", 400, "invalid_dimensions", "dimensions"),
        ("?dimensions=x", b"x", 422, "invalid_field", "dimensions"),
        ("?chunks=fixed", b"x", 422, "unknown_field", "chunks"),
        ("?chunking=magic", b"x", 422, "invalid_field", "chunking"),
        ("?chunking=fixed&tokens=0", b"x", 400, "invalid_chunking", "tokens"),
        ("?chunking=fixed&min_tokens=3", b"x", 400, "unknown_field", "min_tokens"),
        ("?chunking=fixed&overlap=999", b"x", 400, "invalid_chunking", "overlap"),
        ("?chunking=headings&format=latex", b"x", 400, "invalid_chunking", "format"),
        ("?tokens=3", b"x", 400, "unknown_field", "tokens"),
        ("?model=nope", b"x", 404, "model_not_found", "model"),
        ("?chunking=fixed&tokens=3&tokens=4", b"x", 422, "repeated_field", "tokens"),
        ("?chunking=fixed&title=%e9", b"x", 400, "invalid_utf8", None),
    ],
)
@pytest.mark.parametrize("headers", [PLAIN, PLAIN | EVENTS], ids=["whole", "events"])
def test_bad_requests_are_refused_by_name(
    http: httpx.Client,
    headers: dict[str, str],
    query: str,
    content: bytes,
    status: int,
    code: str,
    param: str | None,
) -> None:
    response = http.post(f"/v1/documents{query}", content=content, headers=headers)
    error = response.json()["error"]
    assert (response.status_code, error["code"], error["param"]) == (status, code, param)
    assert "chunking." not in error["message"]  # as in JSON


def test_other_routes_take_no_plain_text(http: httpx.Client) -> None:
    response = http.post("/v1/embeddings", content=b"x", headers=PLAIN)
    assert response.status_code == 415
    response = http.post("/v1/documents", content=b"x", headers={"content-type": "text/html"})
    assert response.status_code == 415


def test_events_come_while_the_text_is_sent_and_an_error_can_follow(server: Any) -> None:
    with upload(server, **EVENTS) as call:
        call.send(b"a word " * 200_000)
        assert call.status() == 200
        assert call.event()["event"] == "accepted"
        call.send(b"\xff")
        call.end()
        while (event := call.event())["event"] == "accepted":
            pass
    assert event["event"] == "error"
    assert event["error"]["code"] == "invalid_utf8"
    assert event["error"]["actual"] == 1_400_000


def test_a_text_that_is_too_long_is_refused_before_its_end(server: Any) -> None:
    with upload(server) as call:
        for _ in range(20):
            call.send(b"a word and another " * 20_000)
        assert call.status() == 400


def test_a_stalled_upload_ends_at_the_deadline(server: Any) -> None:
    with upload(server, x_request_timeout_ms="300") as call:
        call.send(b"some words")
        assert call.status() == 504


@pytest.mark.parametrize("has_ended", [False, True])
def test_a_caller_who_leaves_is_noticed(server: Any, http: httpx.Client, has_ended: bool) -> None:
    before, num_failures = cancelled(http), server.log().count("Traceback")
    with upload(server, **EVENTS) as call:
        call.send(b"a word " * 30_000)
        if has_ended:
            call.end()
            assert call.status() == 200
            assert call.event()["event"] == "accepted"
    deadline = time.monotonic() + 30
    while cancelled(http) == before and time.monotonic() < deadline:
        time.sleep(0.1)
    assert cancelled(http) == before + 1
    assert server.log().count("Traceback") == num_failures


def test_the_page_names_both_ways_in(http: httpx.Client) -> None:
    operation = http.get("/openapi.json").json()["paths"]["/v1/documents"]["post"]
    assert set(operation["requestBody"]["content"]) == {"application/json", "text/plain"}
    assert set(operation["responses"]["200"]["content"]) == {
        "application/json",
        "application/x-ndjson",
    }
    assert {"chunking", "min_tokens"} <= {field["name"] for field in operation["parameters"]}
