"""POST /v1/documents: a vector and late chunks, at once or as a stream; and /v1/tokenize."""

from __future__ import annotations

import base64
import json
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any
from urllib.parse import urlsplit

import httpx
import numpy as np
import pytest
from numpy.typing import NDArray

TEXT = " ".join(f"Sentence number {number} speaks of ships and of the sea." for number in range(60))


def ask(http: httpx.Client, text: str = TEXT, **fields: Any) -> dict[str, Any]:
    response = http.post("/v1/documents", json={"text": text, **fields})
    assert response.status_code == 200, response.text
    document: dict[str, Any] = response.json()
    return document


def decoded(value: str) -> NDArray[np.float32]:
    return np.frombuffer(base64.b64decode(value), dtype="<f4")


def test_without_chunking_it_is_the_embedding_of_the_text(http: httpx.Client) -> None:
    document = ask(http)
    assert document["object"] == "document_embedding"
    assert document["chunks"] == []
    answer = http.post("/v1/embeddings", json={"input": TEXT}).json()
    np.testing.assert_allclose(document["vector"], answer["data"][0]["embedding"], atol=2e-6)
    assert document["usage"] == answer["usage"]


def test_accounting(http: httpx.Client) -> None:
    cost = ask(http)["accounting"]
    assert cost["tokens"] == cost["tokens_embedded"] > 600
    assert cost["dropped"] is None
    assert cost["compute_s"] > 0
    assert cost["queue_s"] >= 0


@pytest.mark.parametrize("overlap", [0, 16])
def test_fixed_chunks_cover_the_text_in_order(http: httpx.Client, overlap: int) -> None:
    chunking = {"type": "fixed", "tokens": 64, "overlap": overlap}
    document = ask(http, chunking=chunking)
    chunks = document["chunks"]
    assert [chunk["index"] for chunk in chunks] == list(range(len(chunks)))
    assert chunks[0]["characters"]["start"] == 0
    assert chunks[-1]["characters"]["end"] == len(TEXT)
    for chunk, following in pairwise(chunks):
        assert following["tokens"]["start"] == chunk["tokens"]["end"] - overlap
        assert chunk["tokens"]["end"] - chunk["tokens"]["start"] == 64
    for chunk in chunks:
        assert np.linalg.norm(chunk["vector"]) == pytest.approx(1, abs=1e-5)
        assert TEXT[chunk["characters"]["start"] : chunk["characters"]["end"]].strip()


def test_chunks_with_their_documents_opening(http: httpx.Client) -> None:
    spans = [{"start": 0, "end": 40}, {"start": 900, "end": 1000}]
    plans = [
        {"type": "spans", "spans": spans, "context": "late", "opening": opening}
        for opening in (None, 0, 0.5, 10)
    ]
    absent, none, some, most = (
        np.array([chunk["vector"] for chunk in ask(http, chunking=plan)["chunks"]])
        for plan in plans
    )
    np.testing.assert_allclose(absent, none, atol=2e-6)
    # The more of what they share, the more alike they are.
    alike = [float(found[0] @ found[1]) for found in (none, some, most)]
    assert alike == sorted(alike)
    assert alike[2] > 0.95 > alike[0]


def test_chunks_read_alone(http: httpx.Client) -> None:
    """All of the way they are texts of their own; half of it, they lie between."""
    passages = [f"Sentence number {number} speaks of ships and of the sea." for number in (0, 18)]
    starts = [TEXT.index(passage) for passage in passages]
    spans = [
        {"start": start, "end": start + len(passage)}
        for start, passage in zip(starts, passages, strict=True)
    ]
    within = {"type": "spans", "spans": spans, "context": "late"}
    plans = [within | {"alone": alone} for alone in (None, 0.5, 1)]
    late, half, alone = (
        np.array([chunk["vector"] for chunk in ask(http, chunking=plan)["chunks"]])
        for plan in plans
    )
    found = http.post("/v1/embeddings", json={"input": passages}).raise_for_status().json()["data"]
    own = np.array([one["embedding"] for one in found])
    assert (late * own).sum(1).max() < 0.98
    np.testing.assert_allclose(alone, own, atol=2e-6)
    for one in (late, alone):
        assert ((half * one).sum(1) > (late * alone).sum(1)).all()


SHARES = {
    "balanced": (0.5, 0.3),
    "late": (0, 0),
    "alone": (1, 0),
    "title": (0.5, 1),
    "opening": (1, 0.3),
    "one_pass": (0, 0.2),
}


def vectors(http: httpx.Client, **fields: Any) -> NDArray[np.float32]:
    document = ask(http, TEXT[:900], encoding_format="base64", **fields)
    return np.stack([decoded(chunk["vector"]) for chunk in document["chunks"]])


@pytest.mark.parametrize("context", SHARES)
def test_a_context_stands_for_its_shares(http: httpx.Client, context: str) -> None:
    alone, opening = SHARES[context]
    chunks = {"type": "fixed", "tokens": 64}
    by_name = vectors(http, chunking=chunks | {"context": context})
    by_share = vectors(http, chunking=chunks | {"alone": alone, "opening": opening})
    np.testing.assert_array_equal(by_name, by_share)
    query = {"chunking": "fixed", "tokens": "64", "context": context, "encoding_format": "base64"}
    answer = http.post("/v1/documents", params=query, content=TEXT[:900].encode(), headers=PLAIN)
    in_query = np.stack([decoded(chunk["vector"]) for chunk in answer.json()["chunks"]])
    np.testing.assert_array_equal(in_query, by_name)
    if context == "balanced":
        np.testing.assert_array_equal(vectors(http, chunking=chunks), by_name)


def test_a_title_in_the_body_and_in_the_query_string(http: httpx.Client) -> None:
    chunks = {"type": "fixed", "tokens": 64, "context": "title"}
    titled = vectors(http, title="Fleets of the world", chunking=chunks)
    assert not np.array_equal(titled, vectors(http, chunking=chunks))
    query = {"chunking": "fixed", "tokens": "64", "context": "title", "encoding_format": "base64"}
    query["title"] = "Fleets of the world"
    answer = http.post("/v1/documents", params=query, content=TEXT[:900].encode(), headers=PLAIN)
    found = answer.json()
    np.testing.assert_array_equal(
        np.stack([decoded(chunk["vector"]) for chunk in found["chunks"]]), titled
    )
    assert found["accounting"]["tokens_alone"] > found["accounting"]["tokens"]


def test_base64(http: httpx.Client) -> None:
    chunking = {"type": "fixed", "tokens": 128}
    numbers = ask(http, chunking=chunking)
    packed = ask(http, chunking=chunking, encoding_format="base64")
    np.testing.assert_allclose(decoded(packed["vector"]), numbers["vector"], atol=2e-6)
    for one, other in zip(packed["chunks"], numbers["chunks"], strict=True):
        np.testing.assert_allclose(decoded(one["vector"]), other["vector"], atol=2e-6)


@pytest.mark.parametrize(
    ("fields", "status", "param"),
    [
        ({"text": ""}, 400, "text"),
        ({"text": ["a"]}, 422, "text"),
        ({"chunking": {"type": "magic"}}, 422, "chunking.type"),
        ({"chunking": {"type": "fixed", "tokns": 3}}, 422, "chunking.tokns"),
        ({"chunking": {"type": "fixed", "tokens": 0}}, 400, None),
        ({"chunking": {"type": "fixed", "tokens": 8, "overlap": 8}}, 400, None),
        ({"chunking": {"type": "fixed", "opening": -0.5}}, 400, "chunking.opening"),
        ({"chunking": {"type": "fixed", "opening": 10.5}}, 400, "chunking.opening"),
        ({"chunking": {"opening": 0.5}}, 400, "chunking.opening"),
        ({"chunking": {"type": "fixed", "alone": 1.5}}, 400, "chunking.alone"),
        ({"chunking": {"alone": 0.5}}, 400, "chunking.alone"),
        ({"chunking": {"type": "fixed", "context": "early"}}, 400, "chunking.context"),
        ({"chunking": {"context": "late"}}, 400, "chunking.context"),
        ({"chunking": {"type": "spans"}}, 400, "chunking.spans"),
        ({"title": "Ships"}, 400, "title"),
        ({"title": " ", "chunking": {"type": "fixed"}}, 400, "title"),
        ({"title": "a " * 600, "chunking": {"type": "fixed"}}, 400, "title"),
        ({"title": "Ships", "chunking": {"type": "fixed", "context": "late"}}, 400, "title"),
        ({"dimensions": 0}, 400, "dimensions"),
        ({"model": "nope"}, 404, "model"),
    ],
)
def test_bad_input_is_refused_by_name(
    http: httpx.Client, fields: dict[str, Any], status: int, param: str | None
) -> None:
    response = http.post("/v1/documents", json={"text": TEXT, **fields})
    error = response.json()["error"]
    assert response.status_code == status, error
    assert param is None or error["param"] == param


def test_a_json_document_has_nothing_in_the_query_string(http: httpx.Client) -> None:
    """What looks as if it were heard must be."""
    answer = http.post("/v1/documents?chunking=fixed", json={"text": TEXT})
    error = answer.json()["error"]
    assert answer.status_code == 400
    assert (error["code"], error["param"]) == ("unknown_field", "chunking")


def test_tokenize(http: httpx.Client) -> None:
    text = "Größe matters."
    found = http.post("/v1/tokenize", json={"text": text}).json()
    assert found["count"] == len(found["ids"]) == len(found["offsets"]) == len(found["tokens"])
    assert found["offsets"][0] == found["offsets"][-1] == [0, 0]
    assert (found["tokens"][0], found["tokens"][-1]) == ("[CLS]", "[SEP]")
    spans = found["offsets"][1:-1]
    assert text[spans[0][0] : spans[0][1]].startswith("G")
    assert spans[-1][1] == len(text)


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
        ("?chunking=fixed&tokens=0", b"x", 400, "invalid_chunking", "chunking.tokens"),
        ("?chunking=fixed&min_tokens=3", b"x", 400, "unknown_field", "chunking.min_tokens"),
        ("?tokens=3", b"x", 400, "unknown_field", "chunking.tokens"),
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
