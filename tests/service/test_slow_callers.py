"""Callers who say nothing, and callers who read nothing: neither keeps its place for ever."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.client import HTTPConnection
from typing import Any
from urllib.parse import urlsplit

import grpc
import httpx
import orjson
import pytest
from grpc import StatusCode
from grpc_reflection.v1alpha import reflection_pb2_grpc

from service.pb.lln.v1 import embeddings_pb2 as pb
from service.pb.lln.v1 import embeddings_pb2_grpc
from service.pb.tei.v1 import tei_pb2_grpc
from tests.service.outside import wait_for

SILENCE_S = 1.0
TIMEOUT_S = 4.0
SMALL_WINDOW = [("grpc.http2.lookahead_bytes", 65_536), ("grpc.http2.bdp_probe", 0)]
# Vectors of far more bytes than a connection has buffers for.
MANY_CHUNKS = {"text": "word " * 1_500, "chunking": {"type": "fixed", "tokens": 8, "overlap": 7}}


@pytest.fixture(scope="module")
def narrow(launch_server: Any) -> Any:
    """One place, so that whoever is answered has been given it."""
    return launch_server(
        LLN_MODELS="default",
        LLN_MAX_OPEN_REQUESTS="1",
        LLN_BODY_TIMEOUT_S=str(SILENCE_S),
        LLN_REQUEST_TIMEOUT_S=str(TIMEOUT_S),
    )


@pytest.fixture
def channel(narrow: Any) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(narrow.grpc_address, SMALL_WINDOW) as channel:
        yield channel


def embeddings(channel: grpc.Channel) -> Any:
    return embeddings_pb2_grpc.EmbeddingsStub(channel)  # type: ignore[no-untyped-call]


def tei(channel: grpc.Channel) -> Any:
    return tei_pb2_grpc.EmbedStub(channel)  # type: ignore[no-untyped-call]


def reflection(channel: grpc.Channel) -> Any:
    return reflection_pb2_grpc.ServerReflectionStub(channel)


def has_room(server: Any) -> bool:
    answer = httpx.post(f"{server.http_url}/v1/embeddings", json={"input": "x"}, timeout=60)
    assert answer.status_code in (200, 429)
    return answer.status_code == 200


def given_up(server: Any, method: str) -> float:
    page = httpx.get(f"{server.http_url}/metrics", timeout=60).text
    wanted = f'lln_requests_total{{code="answer_not_taken",method="{method}"'
    return sum(float(line.split()[-1]) for line in page.splitlines() if line.startswith(wanted))


@contextmanager
def falling_silent(*said: Any) -> Iterator[Iterator[Any]]:
    over = threading.Event()

    def messages() -> Iterator[Any]:
        yield from said
        over.wait(60)

    try:
        yield messages()
    finally:
        over.set()


def assert_ends_in_time(answers: Any) -> None:
    with pytest.raises(grpc.RpcError) as raised:
        list(answers)
    error: Any = raised.value
    assert error.code() == StatusCode.DEADLINE_EXCEEDED
    metadata = dict(error.trailing_metadata())
    assert metadata["lln-error-code"] == "body_timeout"
    assert metadata["lln-error-limit"] == str(SILENCE_S)


@pytest.mark.parametrize(
    "method",
    [
        lambda channel: embeddings(channel).EmbedDocument,
        lambda channel: embeddings(channel).EmbedStream,
        lambda channel: tei(channel).EmbedStream,
        lambda channel: tei(channel).EmbedAllStream,
        lambda channel: reflection(channel).ServerReflectionInfo,
    ],
)
def test_a_stream_that_never_says_anything_ends(
    narrow: Any, channel: grpc.Channel, method: Any
) -> None:
    with falling_silent() as nothing:
        assert_ends_in_time(method(channel)(nothing))
    assert has_room(narrow)


def test_a_stream_that_falls_silent_ends_once_it_is_answered(
    narrow: Any, channel: grpc.Channel
) -> None:
    with falling_silent(pb.EmbedStreamRequest(input=pb.Input(text="a text"))) as requests:
        answers = embeddings(channel).EmbedStream(requests)
        assert next(answers).WhichOneof("outcome") == "embedding"
        assert_ends_in_time(answers)
    assert has_room(narrow)


def test_a_document_whose_next_piece_does_not_come_ends(narrow: Any, channel: grpc.Channel) -> None:
    opening = pb.EmbedDocumentRequest(open=pb.DocumentOptions(), text=b"some words")
    with falling_silent(opening) as pieces:
        assert_ends_in_time(embeddings(channel).EmbedDocument(pieces))
    assert has_room(narrow)


def test_a_plain_text_whose_next_piece_does_not_come_ends(narrow: Any) -> None:
    address = urlsplit(narrow.http_url)
    connection = HTTPConnection(address.hostname or "", address.port, timeout=60)
    with closing(connection):
        connection.putrequest("POST", "/v1/documents")
        connection.putheader("content-type", "text/plain")
        connection.putheader("transfer-encoding", "chunked")
        connection.endheaders()
        connection.send(b"a\r\nsome words\r\n")  # other clients read no answer before their end
        answer = connection.getresponse()
        error = orjson.loads(answer.read())["error"]
    assert (answer.status, error["code"], error["limit"]) == (408, "body_timeout", SILENCE_S)
    assert has_room(narrow)


def test_a_slow_but_steady_document_is_read_to_its_end(channel: grpc.Channel) -> None:
    def pieces() -> Iterator[pb.EmbedDocumentRequest]:
        yield pb.EmbedDocumentRequest(open=pb.DocumentOptions())
        for _ in range(4):
            time.sleep(SILENCE_S / 2)
            yield pb.EmbedDocumentRequest(text=b"some words ")

    *_, last = embeddings(channel).EmbedDocument(pieces())
    assert last.WhichOneof("event") == "result"


def test_who_does_not_read_events_over_http_is_given_up(narrow: Any) -> None:
    before = given_up(narrow, "POST /v1/documents")
    address = urlsplit(narrow.http_url)
    body = orjson.dumps(MANY_CHUNKS)
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect((address.hostname, address.port))
        connection.sendall(
            b"POST /v1/documents HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            b"Accept: application/x-ndjson\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
        )
        assert connection.recv(12) == b"HTTP/1.1 200"
        assert not has_room(narrow)
        wait_for(lambda: has_room(narrow), "the place to be free", 4 * TIMEOUT_S)
        assert given_up(narrow, "POST /v1/documents") == before + 1
    assert "Traceback" not in narrow.log()


def test_who_does_not_read_events_over_grpc_is_given_up(narrow: Any, channel: grpc.Channel) -> None:
    before = given_up(narrow, "lln.v1.Embeddings/EmbedDocument")
    plan = pb.Chunking(fixed=pb.FixedChunks(tokens=8, overlap=7))
    opening = pb.EmbedDocumentRequest(
        open=pb.DocumentOptions(chunking=plan), text=str(MANY_CHUNKS["text"]).encode()
    )
    events = embeddings(channel).EmbedDocument(iter([opening]))
    assert next(events).WhichOneof("event") == "accepted"
    wait_for(lambda: has_room(narrow), "the place to be free", 4 * TIMEOUT_S)
    assert given_up(narrow, "lln.v1.Embeddings/EmbedDocument") == before + 1
    events.cancel()


def test_who_does_not_read_the_answers_of_a_stream_is_given_up(
    narrow: Any, channel: grpc.Channel
) -> None:
    before = given_up(narrow, "lln.v1.Embeddings/EmbedStream")
    one = pb.EmbedStreamRequest(input=pb.Input(text="a text"))
    answers = embeddings(channel).EmbedStream(one for _ in range(5_000))
    next(answers)
    wait_for(lambda: has_room(narrow), "the place to be free")
    assert given_up(narrow, "lln.v1.Embeddings/EmbedStream") == before + 1
    answers.cancel()
    assert "Traceback" not in narrow.log()
