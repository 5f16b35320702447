"""Hostile HTTP over raw sockets: what two readers of one request could read in different ways.

Whatever is refused is followed by a request of its own on the same connection. It must not be
answered: a proxy might take it for a part of the refused one, or the other way round.
"""

from __future__ import annotations

import json
import re
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from http.client import HTTPResponse
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import pytest

from service.http.request_reader import MAX_HEAD_BYTES
from tests.service.http.hostile_requests import (
    BODY,
    BROKEN_CHUNKS,
    BROKEN_HEADS,
    CHUNKED,
    GET,
    HEAD,
    KEY,
    LAST,
    LENGTH,
    LENGTHS,
    OFFER,
    REFUSED_BODIES,
    WELL_FORMED,
    chunked,
    post,
)
from tests.service.outside import metric, wait_for

PATIENCE_S = 2.0


@pytest.fixture(scope="module")
def locked(launch_server: Any) -> Any:
    return launch_server(LLN_MODELS="default", LLN_API_KEYS=KEY, LLN_BODY_TIMEOUT_S=str(PATIENCE_S))


@pytest.fixture
def connection(locked: Any) -> Iterator[socket.socket]:
    with connect(locked) as opened:
        yield opened


def connect(server: Any) -> socket.socket:
    address = urlsplit(server.http_url)
    return socket.create_connection((address.hostname or "", address.port or 0), 30)


class Answered(NamedTuple):
    statuses: list[int]
    content: bytes


def answered(connection: socket.socket) -> Answered:
    """All that comes until the server closes the connection."""
    content = b"".join(iter(lambda: connection.recv(65_536), b""))
    return Answered(
        [int(status) for status in re.findall(rb"HTTP/1\.1 (\d{3}) ", content)], content
    )


def send_while_taken(connection: socket.socket, content: bytes) -> None:
    """The timeout counts from the last bytes that were taken; `sendall` would count it once."""
    rest = memoryview(content)
    while rest:
        rest = rest[connection.send(rest) :]


def assert_refused(connection: socket.socket) -> None:
    statuses, content = answered(connection)
    assert statuses == [400], content
    error = json.loads(content.partition(b"\r\n\r\n")[2])["error"]
    assert error["code"] == "invalid_http"
    assert error["type"] == "invalid_request_error"


@pytest.mark.parametrize("request_", LENGTHS.values(), ids=LENGTHS)
def test_a_body_of_unclear_length_is_refused(request_: bytes, connection: socket.socket) -> None:
    connection.sendall(request_ + GET)
    assert_refused(connection)


@pytest.mark.parametrize("body", BROKEN_CHUNKS.values(), ids=BROKEN_CHUNKS)
def test_broken_chunks_are_refused(body: bytes, connection: socket.socket) -> None:
    connection.sendall(chunked(body) + GET)
    assert_refused(connection)


@pytest.mark.parametrize("head", BROKEN_HEADS.values(), ids=BROKEN_HEADS)
def test_a_broken_head_is_refused(head: bytes, connection: socket.socket) -> None:
    connection.sendall(head + GET)
    assert_refused(connection)


def test_letters_that_must_be_encoded_are_named(connection: socket.socket) -> None:
    """curl sends them as they were typed."""
    connection.sendall("GET /v1/files?purpose=é HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    content = answered(connection).content
    assert b"the byte 0xc3; percent-encode what is not ASCII" in content
    assert b"bytearray" not in content


@pytest.mark.parametrize("start", [HEAD + b"X-A: ", b"GET /"])
def test_a_head_without_end_is_refused(start: bytes, connection: socket.socket) -> None:
    connection.sendall(start + b"a" * MAX_HEAD_BYTES)
    assert connection.recv(12) == b"HTTP/1.1 400"


@pytest.mark.parametrize("excess", [1_000, 30_000])
def test_a_long_head_that_arrives_whole_is_refused(excess: int, connection: socket.socket) -> None:
    """In one read: the parser's own limit holds only while the end of a head is missing."""
    connection.sendall(HEAD + b"X-A: " + b"a" * (MAX_HEAD_BYTES + excess) + b"\r\n\r\n")
    assert connection.recv(12) == b"HTTP/1.1 400"


@pytest.mark.parametrize("request_", WELL_FORMED.values(), ids=WELL_FORMED)
def test_what_is_unusual_and_clear_is_served(request_: bytes, connection: socket.socket) -> None:
    """So is the request that follows it."""
    connection.sendall(request_ + LAST)
    assert answered(connection).statuses == [200, 200]


def test_fields_of_a_trailer_are_no_headers(connection: socket.socket) -> None:
    key = b"X-API-Key: %b\r\n" % KEY.encode()
    head = b"POST /v1/embeddings HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    connection.sendall(head + b"13\r\n" + BODY + b"\r\n0\r\n" + key + b"\r\n" + LAST)
    assert answered(connection).statuses == [401, 200]


def test_the_host_of_the_target_counts(connection: socket.socket) -> None:
    """A page may call the server that it comes from, and no other."""
    page = b"Origin: http://x", LENGTH
    for host, status in ((b"x", 200), (b"y", 403)):
        line = b"POST http://%b/v1/embeddings HTTP/1.1" % host
        connection.sendall(post(*page, line=line, body=BODY))
        with closing(HTTPResponse(connection)) as answer:
            answer.begin()
            assert answer.status == status
            answer.read()


@pytest.mark.parametrize("method", [b"CONNECT x:443", b"TRACE /", b"OPTIONS *", b"BREW /"])
def test_other_methods_are_refused_in_form(method: bytes, connection: socket.socket) -> None:
    connection.sendall(method + b" HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n" + GET)
    [status], content = answered(connection)
    assert status in (401, 404, 405), content
    assert b'"code"' in content


def test_http_1_0_needs_no_host(connection: socket.socket) -> None:
    connection.sendall(b"GET /health/live HTTP/1.0\r\n\r\n")
    assert answered(connection).statuses == [200]


@pytest.mark.parametrize("request_", REFUSED_BODIES.values(), ids=REFUSED_BODIES)
def test_a_body_that_nobody_read_is_no_request(request_: bytes, connection: socket.socket) -> None:
    connection.sendall(request_.replace(BODY, GET[: len(BODY)]) + LAST)
    first, last = answered(connection).statuses
    assert first in (200, 400, 401, 404, 405, 415)
    assert last == 200


def test_chunks_that_break_after_the_answer_end_the_connection(
    locked: Any, connection: socket.socket
) -> None:
    head = b"POST /v1/embeddings HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    connection.sendall(head)
    assert connection.recv(65_536).startswith(b"HTTP/1.1 401")  # it needed no body
    connection.sendall(b"zz\r\n" + GET)
    assert answered(connection).statuses == []
    assert "Traceback" not in locked.log()


def test_a_document_that_breaks_off_is_refused_once(locked: Any, connection: socket.socket) -> None:
    """It is read while it arrives, so its handler runs already."""
    document = post(CHUNKED, b"Content-Type: text/plain", line=b"POST /v1/documents HTTP/1.1")
    document = document.replace(b"Content-Type: application/json\r\n", b"")
    connection.sendall(document + b"a\r\nsome words\r\n")
    wait_for(lambda: metric(locked.http_url, "lln_requests_in_progress") >= 1, "its handler")
    connection.sendall(b"zz\r\n" + GET)
    assert_refused(connection)
    wait_for(lambda: metric(locked.http_url, "lln_requests_in_progress") == 0, "its end")
    assert "Traceback" not in locked.log()


@pytest.mark.long
def test_callers_that_never_finish_are_not_waited_for(locked: Any) -> None:
    slow = {
        b"": [],  # browsers connect ahead of need
        b"GET /hea": [408],
        HEAD + b"A: b": [408],
        GET + b"GET /hea": [200, 408],
        post(LENGTH, body=BODY[:5]): [408],
        chunked(b"13\r\n" + BODY[:5]): [408],
        chunked(b"13"): [408],
        post(LENGTH, line=b"POST /nowhere HTTP/1.1", body=BODY[:5]): [408],
        post(LENGTH, body=BODY[:5]).replace(KEY.encode(), b"no-key-of-this-server"): [401],
    }
    with ExitStack() as opened:
        connections = [opened.enter_context(connect(locked)) for _ in slow]
        for connection, said in zip(connections, slow, strict=True):
            connection.sendall(said)
        for connection, (said, statuses) in zip(connections, slow.items(), strict=True):
            assert answered(connection).statuses == statuses, said
    assert "Traceback" not in locked.log()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells without reading on")
def test_callers_that_leave_while_their_bodies_wait_free_their_places(launch_server: Any) -> None:
    """Nothing is read from them, and yet it is noticed."""
    server = launch_server(LLN_MODELS="default", LLN_MAX_OPEN_BODY_BYTES="2000000")
    size = 1_000_000
    head = b"POST /v1/embeddings HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % size

    def in_progress() -> float:
        return metric(server.http_url, "lln_requests_in_progress")

    with connect(server) as holder:  # the whole lane of large bodies
        holder.sendall(head + b" " * (size // 2))
        wait_for(lambda: in_progress() == 1, "the first body")
        waiting = [connect(server) for _ in range(3)]
        for connection in waiting:
            connection.sendall(head + b" " * (size // 2))
        wait_for(lambda: in_progress() == 4, "the others")
        for connection in waiting:
            connection.close()
        wait_for(lambda: in_progress() == 1, "their end", 10)


@pytest.mark.parametrize("pause_s", [0, 0.2])
def test_who_offers_another_protocol_is_answered_in_this_one(
    connection: socket.socket, pause_s: float
) -> None:
    """As curl --http2 and Java's HttpClient do, the latter with the body on its own."""
    head = post(LENGTH, OFFER.removesuffix(b"\r\n"))
    for segment in (head, BODY) if pause_s else [head + BODY]:
        connection.sendall(segment)
        time.sleep(pause_s)
    with closing(HTTPResponse(connection)) as answer:
        answer.begin()
        assert answer.status == 200
        assert len(json.loads(answer.read())["data"]) == 1


def test_a_long_head_is_read(connection: socket.socket) -> None:
    connection.sendall(HEAD + b"X-A: " + b"a" * (MAX_HEAD_BYTES - 1_000) + b"\r\n\r\n")
    assert connection.recv(12) == b"HTTP/1.1 200"


def test_a_long_body_behind_a_head_is_not_part_of_it(connection: socket.socket) -> None:
    body = json.dumps({"input": " " * MAX_HEAD_BYTES + "a text"}).encode()
    connection.sendall(post(b"Content-Length: %d" % len(body), body=body))
    assert connection.recv(12) == b"HTTP/1.1 200"


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads memory as Linux tells it")
def test_requests_ahead_of_their_answers_wait_outside(
    locked: Any, connection: socket.socket
) -> None:
    """Nobody reads the answers: what the server would read ahead of them, it would have to keep."""
    before = memory_mb(locked)
    connection.settimeout(1)
    with pytest.raises(TimeoutError):
        send_while_taken(connection, GET * 2_000_000)
    assert memory_mb(locked) - before < 50


def memory_mb(server: Any) -> float:
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    found = re.search(r"VmRSS:\s+(\d+)", status)
    assert found is not None
    return int(found[1]) / 1024
