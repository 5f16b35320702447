"""Embeddings.EmbedDocument: pieces, the order of events, and how each call ends."""

from __future__ import annotations

import base64
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from typing import Any

import grpc
import httpx
import numpy as np
import pytest
from google.protobuf.json_format import MessageToDict
from grpc import StatusCode
from numpy.typing import NDArray

from engine.text.chunking import SHARES
from service.pb.lln.v1 import embeddings_pb2 as pb
from tests.service.outside import wait_for
from tests.service.stubs import embeddings_stub

METHOD = "/lln.v1.Embeddings/EmbedDocument"
MEGABYTE = 1_048_576
TEXT = "# Größe\n\nNaïve 😀 e\u0301 שלום. 日本語。 More words.\n\n## Sub\n\nThe end.\n\n" * 20
OF_RECORDS = {
    *("tokens_read", "segments", "segments_read", "staleness", "gone", "rounds"),
    *("sealed", "sealed_staleness"),
}
"""Fields of a result that only a document with a record has."""
HEADINGS = pb.Chunking(headings=pb.HeadingChunks(max_tokens=64))


@pytest.fixture(scope="module")
def embed(channel: grpc.Channel) -> Any:
    stub = embeddings_stub(channel)
    return stub.EmbedDocument


def opening(**fields: Any) -> pb.EmbedDocumentRequest:
    return pb.EmbedDocumentRequest(open=pb.DocumentOptions(**fields))


def pieces(data: bytes, size: int) -> Iterator[pb.EmbedDocumentRequest]:
    for start in range(0, len(data), size):
        yield pb.EmbedDocumentRequest(text=data[start : start + size])


def document(text: str, size: int, **fields: Any) -> Iterator[pb.EmbedDocumentRequest]:
    yield opening(**fields)
    yield from pieces(text.encode(), size)


def failure(events: Iterable[Any]) -> tuple[StatusCode, dict[str, str]]:
    """Returns the error of a call that must fail."""
    with pytest.raises(grpc.RpcError) as caught:
        list(events)
    error: Any = caught.value
    return error.code(), dict(error.trailing_metadata())


def vector(message: pb.Vector) -> NDArray[np.float32]:
    return np.frombuffer(message.data, "<f4")


def finished(http: httpx.Client, code: str) -> float:
    lines = http.get("/metrics").text.splitlines()
    found = [line for line in lines if line.startswith("lln_requests_total{")]
    named = [line for line in found if "EmbedDocument" in line and f'code="{code}"' in line]
    return sum(float(line.split()[-1]) for line in named)


@pytest.mark.parametrize("size", [1, 1_000, MEGABYTE])
def test_pieces_of_any_size_give_the_same_result(embed: Any, http: httpx.Client, size: int) -> None:
    fields = {"text": TEXT, "chunking": {"type": "headings", "max_tokens": 64, "alone": 0.25}}
    whole = http.post("/v1/documents", json=fields).json()
    plan = pb.Chunking(headings=HEADINGS.headings, alone=0.25)
    events = list(embed(document(TEXT, size, chunking=plan)))
    result = events[-1].result
    assert float(vector(result.vector) @ np.array(whole["vector"])) > 0.999999
    assert result.accounting.tokens == whole["accounting"]["tokens"]
    chunks = [chunk for event in events for chunk in event.chunks.chunks]
    assert result.num_chunks == len(chunks) == len(whole["chunks"]) == 40
    for chunk, expected in zip(chunks, whole["chunks"], strict=True):
        assert float(vector(chunk.vector) @ np.array(expected["vector"])) > 0.999999
        shown = MessageToDict(chunk, preserving_proto_field_name=True)
        assert shown.get("headings") == expected["headings"]
        assert (chunk.characters.start, chunk.characters.end) == tuple(
            expected["characters"].values()
        )


def test_contexts_and_titles_are_those_of_http(embed: Any, http: httpx.Client) -> None:
    text = TEXT[:300]
    for context in (*SHARES, None):
        named: dict[str, Any] = {} if context is None else {"context": context}
        titled = {"title": "Größe"} if context and SHARES[context].opening else {}
        fields = {"text": text, "chunking": {"type": "fixed", "tokens": 16, **named}, **titled}
        body = fields | {"encoding_format": "base64"}
        whole = http.post("/v1/documents", json=body).json()
        plan = pb.Chunking(fixed=pb.FixedChunks(tokens=16), **named)
        events = list(embed(document(text, 1_000, chunking=plan, **titled)))
        chunks = [chunk for event in events for chunk in event.chunks.chunks]
        assert [base64.b64encode(chunk.vector.data).decode() for chunk in chunks] == [
            chunk["vector"] for chunk in whole["chunks"]
        ]
        cost = events[-1].result.accounting
        assert cost.tokens_alone == whole["accounting"]["tokens_alone"]
        assert (cost.tokens_alone == 0) == (context == "late")


def test_events_have_the_order_and_names_of_http(embed: Any, http: httpx.Client) -> None:
    events = list(embed(document(TEXT, 100, chunking=HEADINGS)))
    names = [event.WhichOneof("event") for event in events]
    assert names[0] == "accepted"
    assert names[-1] == "result"
    assert {"progress", "chunks"} == set(names[1:-1])
    assert events[0].accepted.tokens == events[-1].result.accounting.tokens

    query = {"chunking": "headings", "max_tokens": "64"}
    headers = {"content-type": "text/plain", "accept": "application/x-ndjson"}
    answer = http.post("/v1/documents", params=query, content=TEXT.encode(), headers=headers)
    fields = {}
    for line in answer.iter_lines():
        event = httpx.Response(200, text=line).json()
        fields[event["event"]] = set(event) - {
            "event",
            "usage",
        }  # usage is OpenAI's field, over HTTP only
    for name, ours in fields.items():
        message: Any = pb.DocumentEvent.DESCRIPTOR.fields_by_name[name].message_type
        assert {field.name for field in message.fields} - OF_RECORDS == ours
    assert set(fields) == set(names)


def test_vectors_in_other_formats(embed: Any) -> None:
    options = pb.EmbedOptions(format=pb.VECTOR_FORMAT_INT8, dimensions=64)
    plan = pb.Chunking(spans=pb.SpanChunks(spans=[pb.CharacterSpan(start=9, end=14)]))
    *_, chunked, result = [
        event
        for event in embed(document("# Größe\n\nNaïve", 7, options=options, chunking=plan))
        if event.WhichOneof("event") in ("chunks", "result")
    ]
    (chunk,) = chunked.chunks.chunks
    for message in (chunk.vector, result.result.vector):
        assert (message.format, list(message.shape)) == (pb.VECTOR_FORMAT_INT8, [64])
        assert len(message.data) == 64


@pytest.mark.parametrize(
    ("requests", "code", "param"),
    [
        ([], "missing_field", "open"),
        ([pb.EmbedDocumentRequest(text=b"x")], "missing_field", "open"),
        ([opening(), pb.EmbedDocumentRequest(text=b"x"), opening()], "invalid_field", "open"),
        ([opening()], "empty_text", "text"),
        ([opening(), pb.EmbedDocumentRequest(text=b"ab\xff")], "invalid_utf8", "text"),
        ([opening(), pb.EmbedDocumentRequest(text=b"ab\xe6\x97")], "invalid_utf8", "text"),
        ([opening(model="nope")], "model_not_found", "model"),
        ([opening(options=pb.EmbedOptions(dimensions=0))], "invalid_dimensions", "dimensions"),
        (
            [opening(chunking=pb.Chunking(fixed=pb.FixedChunks(tokens=0)))],
            "invalid_chunking",
            "chunking.tokens",
        ),
        (
            [opening(chunking=pb.Chunking(headings=pb.HeadingChunks(format="latex")))],
            "invalid_chunking",
            "chunking.format",
        ),
        ([opening(chunking=pb.Chunking(opening=0.5))], "unknown_field", "chunking.opening"),
        ([opening(chunking=pb.Chunking(alone=0.5))], "unknown_field", "chunking.alone"),
        ([opening(chunking=pb.Chunking(context="late"))], "unknown_field", "chunking.context"),
        (
            [opening(chunking=pb.Chunking(fixed=pb.FixedChunks(), context="early"))],
            "invalid_chunking",
            "chunking.context",
        ),
        ([opening(title="Ships")], "unused_title", "title"),
        ([opening(title="\n", chunking=HEADINGS)], "empty_title", "title"),
        (list(document("word", 9, title="a " * 600, chunking=HEADINGS)), "title_too_long", "title"),
        (
            [opening(chunking=pb.Chunking(fixed=pb.FixedChunks(), alone=-1))],
            "invalid_chunking",
            "chunking.alone",
        ),
        (
            [opening(chunking=pb.Chunking(fixed=pb.FixedChunks(), opening=11))],
            "invalid_chunking",
            "chunking.opening",
        ),
        (
            list(
                document(
                    "word",
                    9,
                    chunking=pb.Chunking(
                        spans=pb.SpanChunks(spans=[pb.CharacterSpan(start=0, end=9)])
                    ),
                )
            ),
            "invalid_chunking",
            "chunking.spans[0]",
        ),
    ],
)
def test_invalid_documents_are_rejected(
    embed: Any, requests: list[pb.EmbedDocumentRequest], code: str, param: str
) -> None:
    status, metadata = failure(embed(iter(requests)))
    expected = StatusCode.NOT_FOUND if code == "model_not_found" else StatusCode.INVALID_ARGUMENT
    assert status == expected
    assert (metadata["lln-error-code"], metadata["lln-error-param"]) == (code, param)


def test_an_undecodable_message(channel: grpc.Channel) -> None:
    call = channel.stream_stream(METHOD, None, pb.DocumentEvent.FromString)
    status, metadata = failure(call(iter([opening().SerializeToString(), b"\x12\xff"])))
    assert (status, metadata["lln-error-code"]) == (StatusCode.INVALID_ARGUMENT, "invalid_message")


@pytest.mark.long
def test_a_document_beyond_the_limit_is_rejected_before_its_end(embed: Any) -> None:
    num_sent = 0

    def endless() -> Iterator[pb.EmbedDocumentRequest]:
        nonlocal num_sent
        yield opening()
        while True:
            num_sent += 1
            yield pb.EmbedDocumentRequest(text=b"a word and another " * 20_000)

    status, metadata = failure(embed(endless()))
    assert status == StatusCode.INVALID_ARGUMENT
    assert metadata["lln-error-code"] == "text_too_long"
    assert int(metadata["lln-error-limit"]) == 1_048_576 < int(metadata["lln-error-actual"])
    assert num_sent < 60


@pytest.mark.parametrize("timeout_s", [0.001, 0.5])
def test_a_deadline_ends_a_document_that_does_not(embed: Any, timeout_s: float) -> None:
    over = threading.Event()

    def stalled() -> Iterator[pb.EmbedDocumentRequest]:
        yield opening()
        yield pb.EmbedDocumentRequest(text=b"some words")
        over.wait(60)

    status, _ = failure(embed(stalled(), timeout=timeout_s))
    over.set()
    assert status == StatusCode.DEADLINE_EXCEEDED


def test_cancelling_stops_the_work(embed: Any, http: httpx.Client, server: Any) -> None:
    before = finished(http, "cancelled")
    over = threading.Event()

    def stalled() -> Iterator[pb.EmbedDocumentRequest]:
        yield opening()
        yield pb.EmbedDocumentRequest(text=b"a word " * 100_000)
        over.wait(60)

    events = embed(stalled())
    assert next(events).accepted.tokens > 16_384
    events.cancel()
    over.set()
    wait_for(lambda: finished(http, "cancelled") > before, "a cancelled call", seconds=30)
    assert "call failed" not in server.log()


CLIENT = """
import sys, time, grpc
from service.pb.lln.v1 import embeddings_pb2 as pb, embeddings_pb2_grpc
def endless():
    yield pb.EmbedDocumentRequest(open=pb.DocumentOptions())
    while True:
        yield pb.EmbedDocumentRequest(text=b"word " * 20_000)
        time.sleep(0.2)
stub = embeddings_pb2_grpc.EmbeddingsStub(grpc.insecure_channel(sys.argv[1]))
for event in stub.EmbedDocument(endless()):
    print(event.WhichOneof("event"), flush=True)
"""


def test_a_killed_client_is_noticed(http: httpx.Client, server: Any) -> None:
    before = finished(http, "cancelled")
    client = subprocess.Popen(
        [sys.executable, "-c", CLIENT, server.grpc_address], stdout=subprocess.PIPE, text=True
    )
    assert client.stdout is not None
    with client.stdout:
        assert client.stdout.readline() == "accepted\n"
        client.kill()
        client.wait(30)
    wait_for(lambda: finished(http, "cancelled") > before, "a cancelled call", seconds=30)
    assert http.get("/health/ready").status_code == 200


def test_64_megabytes_without_a_space(embed: Any) -> None:
    def word() -> Iterator[pb.EmbedDocumentRequest]:
        yield opening(chunking=pb.Chunking(fixed=pb.FixedChunks(tokens=1)))
        for _ in range(64):
            yield pb.EmbedDocumentRequest(text=b"x" * MEGABYTE)

    started_at = time.monotonic()
    events = list(embed(word()))
    (chunk,) = [chunk for event in events for chunk in event.chunks.chunks]
    assert events[-1].result.accounting.tokens == 3
    assert (chunk.characters.start, chunk.characters.end) == (0, 64 * MEGABYTE)
    assert time.monotonic() - started_at < 30


def test_truncation_reports_the_dropped_characters(start_server: Any) -> None:
    server = start_server(LLN_MODELS="default", LLN_ENGINE__MAX_TEXT_TOKENS="1000")
    text = "some words " * 5_000
    with (
        grpc.insecure_channel(server.grpc_address) as channel,
        httpx.Client(base_url=server.http_url, timeout=60) as http,
    ):
        stub = embeddings_stub(channel)
        options = pb.EmbedOptions(truncate=pb.TRUNCATE_END)
        *_, last = stub.EmbedDocument(document(text, 10_000, options=options))
        cost = last.result.accounting
        assert (cost.tokens, cost.tokens_embedded) == (10_002, 1_000)
        assert (cost.dropped.start, cost.dropped.end) == (499 * 11, len(text) - 1)
        whole = http.post("/v1/documents", json={"text": text, "truncate": "end"}).json()
        assert whole["accounting"]["dropped"] == {"start": 499 * 11, "end": len(text) - 1}
        item = http.post("/v1/embeddings", json={"input": [text], "truncate": "start"}).json()
        assert item["data"][0]["lln"] == {
            "tokens": 10_002,
            "tokens_embedded": 1_000,
            "dropped": {"start": 0, "end": len(text) - 1 - 499 * 11},
        }
        lines = http.get("/metrics").text.splitlines()
        assert 'lln_truncated_total{model="default"} 3.0' in lines


def test_a_stopping_server_reads_no_more_pieces(start_server: Any) -> None:
    server = start_server(LLN_MODELS="default")
    over = threading.Event()

    def stalled() -> Iterator[pb.EmbedDocumentRequest]:
        yield opening()
        yield pb.EmbedDocumentRequest(text=b"a word " * 200_000)
        over.wait(60)

    with grpc.insecure_channel(server.grpc_address) as channel:
        stub = embeddings_stub(channel)
        events = stub.EmbedDocument(stalled())
        assert next(events).WhichOneof("event") == "accepted"
        assert server.stop() == 0
        status, metadata = failure(events)
        over.set()
    assert (status, metadata["lln-error-code"]) == (StatusCode.UNAVAILABLE, "unavailable")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_100_megabytes_in_small_messages_and_little_memory(start_server: Any) -> None:
    server = start_server(LLN_MODELS="default", LLN_ENGINE__MAX_TEXT_TOKENS="1000")
    piece = (b"word " + b"x" * 194 + b" ") * 500  # long words are faster to tokenise

    def text() -> Iterator[pb.EmbedDocumentRequest]:
        yield opening(options=pb.EmbedOptions(truncate=pb.TRUNCATE_END))
        for _ in range(1_000):
            yield pb.EmbedDocumentRequest(text=piece)

    def memory(http: httpx.Client) -> float:
        lines = http.get("/metrics").text.splitlines()
        (line,) = [x for x in lines if x.startswith('lln_device_memory_bytes{kind="peak"}')]
        return float(line.split()[-1])

    with (
        grpc.insecure_channel(server.grpc_address) as channel,
        httpx.Client(base_url=server.http_url, timeout=60) as http,
    ):
        before = memory(http)
        stub = embeddings_stub(channel)
        *_, last = stub.EmbedDocument(text())
        assert last.result.accounting.tokens == 1_000 * 500 * 2 + 2
        assert memory(http) - before < 512 * MEGABYTE
