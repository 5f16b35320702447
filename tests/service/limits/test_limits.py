"""Limits: how long a caller may be silent or leave an answer unread."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import grpc
import httpx
import orjson
import pytest
from starlette.types import Message

from service.pb.lln.v1 import embeddings_pb2 as pb
from service.pb.tei.v1 import tei_pb2
from tests.service.limits.silent_callers import (
    A_TEXT,
    SILENCE_S,
    TIMEOUT_S,
    assert_ends_in_time,
    falling_silent,
    has_room,
)
from tests.service.outside import wait_for
from tests.service.stubs import embeddings_stub

SMALL_WINDOW = [("grpc.http2.lookahead_bytes", 65_536), ("grpc.http2.bdp_probe", 0)]
# The vectors have far more bytes than the buffers of a connection.
MANY_CHUNKS = {
    "text": "word " * 1_500,
    "chunking": {"type": "fixed", "tokens": 8, "overlap": 7, "context": "late"},
}


@pytest.fixture(scope="module")
def narrow(launch_server: Any) -> Any:
    """One request slot, so an answer shows that the slot was released."""
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


def given_up(server: Any, method: str) -> float:
    page = httpx.get(f"{server.http_url}/metrics", timeout=60).text
    wanted = f'lln_requests_total{{code="answer_not_taken",method="{method}"'
    return sum(float(line.split()[-1]) for line in page.splitlines() if line.startswith(wanted))


def test_an_idle_stream_times_out_once_it_is_answered(narrow: Any, channel: grpc.Channel) -> None:
    with falling_silent(A_TEXT) as requests:
        answers = embeddings_stub(channel).EmbedStream(requests)
        assert next(answers).WhichOneof("outcome") == "embedding"
        assert_ends_in_time(answers)
    assert has_room(narrow)


def test_a_stalled_document_times_out(narrow: Any, channel: grpc.Channel) -> None:
    opening = pb.EmbedDocumentRequest(open=pb.DocumentOptions(), text=b"some words")
    with falling_silent(opening) as pieces:
        assert_ends_in_time(embeddings_stub(channel).EmbedDocument(pieces))
    assert has_room(narrow)


def test_a_stalled_plain_text_times_out(narrow: Any) -> None:
    address = urlsplit(narrow.http_url)
    connection = HTTPConnection(address.hostname or "", address.port, timeout=60)
    with closing(connection):
        connection.putrequest("POST", "/v1/documents")
        connection.putheader("content-type", "text/plain")
        connection.putheader("transfer-encoding", "chunked")
        connection.endheaders()
        connection.send(
            b"a\r\nsome words\r\n"
        )  # other HTTP clients read no answer before they have sent everything
        answer = connection.getresponse()
        error = orjson.loads(answer.read())["error"]
    assert (answer.status, error["code"], error["limit"]) == (408, "body_timeout", SILENCE_S)
    assert has_room(narrow)


def test_a_slow_but_steady_document_is_read_to_its_end(channel: grpc.Channel) -> None:
    def pieces() -> Iterator[pb.EmbedDocumentRequest]:
        yield pb.EmbedDocumentRequest(open=pb.DocumentOptions())
        for _ in range(3):  # longer than the silence that is allowed
            time.sleep(SILENCE_S / 2)
            yield pb.EmbedDocumentRequest(text=b"some words ")

    *_, last = embeddings_stub(channel).EmbedDocument(pieces())
    assert last.WhichOneof("event") == "result"


@pytest.mark.long
def test_unread_events_over_http_time_out(narrow: Any) -> None:
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


@pytest.mark.long
def test_unread_events_over_grpc_time_out(narrow: Any, channel: grpc.Channel) -> None:
    before = given_up(narrow, "lln.v1.Embeddings/EmbedDocument")
    plan = pb.Chunking(fixed=pb.FixedChunks(tokens=8, overlap=7), context="late")
    opening = pb.EmbedDocumentRequest(
        open=pb.DocumentOptions(chunking=plan), text=str(MANY_CHUNKS["text"]).encode()
    )
    events = embeddings_stub(channel).EmbedDocument(iter([opening]))
    assert next(events).WhichOneof("event") == "accepted"
    wait_for(lambda: has_room(narrow), "the place to be free", 4 * TIMEOUT_S)
    assert given_up(narrow, "lln.v1.Embeddings/EmbedDocument") == before + 1
    events.cancel()


@pytest.mark.long
def test_unread_answers_of_a_stream_time_out(narrow: Any, channel: grpc.Channel) -> None:
    before = given_up(narrow, "lln.v1.Embeddings/EmbedStream")
    answers = embeddings_stub(channel).EmbedStream(A_TEXT for _ in range(5_000))
    next(answers)
    wait_for(lambda: has_room(narrow), "the place to be free")
    assert given_up(narrow, "lln.v1.Embeddings/EmbedStream") == before + 1
    answers.cancel()
    assert "Traceback" not in narrow.log()


ANSWER_TIMEOUT_S = 2.6
START: Message = {"type": "http.response.start", "status": 200, "headers": []}
# Its states have megabytes, more than the buffers of a connection.
LARGE = json.dumps({"inputs": "word " * 1_600, "truncate": True}).encode()


@pytest.fixture(scope="module")
def patient(launch_server: Any) -> Any:
    """One request slot, so an answer shows that the slot was released."""
    return launch_server(
        LLN_MODELS="default", LLN_MAX_OPEN_REQUESTS="1", LLN_REQUEST_TIMEOUT_S=str(ANSWER_TIMEOUT_S)
    )


@contextmanager
def unread(server: Any) -> Iterator[None]:
    address = urlsplit(server.http_url)
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.settimeout(60)
        connection.connect((address.hostname, address.port))
        connection.sendall(
            b"POST /embed_all HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            b"Content-Length: %d\r\n\r\n%b" % (len(LARGE), LARGE)
        )
        assert connection.recv(12) == b"HTTP/1.1 200"
        yield


def open_files(server: Any) -> int:
    """Reads them from Linux; returns none elsewhere."""
    return len(list(Path("/proc").glob(f"{server.process.pid}/fd/*")))


@pytest.mark.long
def test_an_unread_large_answer_times_out(patient: Any) -> None:
    before, files = given_up(patient, "POST /embed_all"), open_files(patient)
    with unread(patient):
        assert not has_room(patient)
        wait_for(lambda: has_room(patient), "the place to be free", 4 * ANSWER_TIMEOUT_S)
        assert given_up(patient, "POST /embed_all") == before + 1
        # An orderly close would wait for the reader.
        wait_for(lambda: open_files(patient) <= files, "a closed connection", ANSWER_TIMEOUT_S)
    assert "Traceback" not in patient.log()
    assert "without completing" not in patient.log()


@pytest.mark.long
def test_an_unread_answer_over_grpc_times_out(patient: Any) -> None:
    """Read as a stream, it stays unread until it is asked for."""
    method = "tei.v1.Embed/EmbedAll"
    before = given_up(patient, method)
    question = tei_pb2.EmbedAllRequest(inputs="word " * 1_600, truncate=True)
    with grpc.insecure_channel(patient.grpc_address, SMALL_WINDOW) as channel:
        embed_all: Any = channel.unary_stream(f"/{method}", None, None)
        unread = embed_all(question.SerializeToString())
        time.sleep(ANSWER_TIMEOUT_S / 2)  # its answer is ready, and waits
        assert not has_room(patient)
        wait_for(lambda: has_room(patient), "the place to be free", 4 * ANSWER_TIMEOUT_S)
        assert given_up(patient, method) == before + 1
        unread.cancel()
        left = embed_all(question.SerializeToString())
        time.sleep(ANSWER_TIMEOUT_S / 2)
        left.cancel()
        wait_for(lambda: has_room(patient), "its place", ANSWER_TIMEOUT_S)
    assert given_up(patient, method) == before + 1
    assert "Traceback" not in patient.log()


@pytest.mark.long
def test_an_unread_file_times_out(patient: Any) -> None:
    form: Any = {"data": {"purpose": "batch"}, "files": {"file": ("a.jsonl", b"x" * 20_000_000)}}
    file = httpx.post(f"{patient.http_url}/v1/files", timeout=60, **form).json()["id"]
    wait_for(lambda: has_room(patient), "the place of the upload", 4 * ANSWER_TIMEOUT_S)
    address = urlsplit(patient.http_url)
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect((address.hostname, address.port))
        connection.sendall(b"GET /v1/files/%b/content HTTP/1.1\r\nHost: x\r\n\r\n" % file.encode())
        assert connection.recv(12) == b"HTTP/1.1 200"
        assert not has_room(patient)
        wait_for(lambda: has_room(patient), "the place to be free", 4 * ANSWER_TIMEOUT_S)
    assert given_up(patient, "GET /v1/files/{file_id}/content") == 1
    assert "Traceback" not in patient.log()


def test_leaving_a_large_answer_releases_the_request_slot(patient: Any) -> None:
    with unread(patient):
        assert not has_room(patient)
    wait_for(lambda: has_room(patient), "the place to be free", ANSWER_TIMEOUT_S / 2)


def test_a_client_that_reads_gets_all_of_it(patient: Any) -> None:
    address = urlsplit(patient.http_url)
    with closing(HTTPConnection(address.hostname or "", address.port, timeout=60)) as connection:
        for _ in range(2):
            headers = {"content-type": "application/json"}
            connection.request("POST", "/embed_all", LARGE, headers)
            answer = connection.getresponse()
            body = answer.read()
            assert int(answer.headers["content-length"]) == len(body) > 1_000_000
            assert len(json.loads(body)) == 1
