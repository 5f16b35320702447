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

from service.http.connection import MAX_HEAD_BYTES
from tests.service.outside import metric, wait_for

KEY = "a-key-of-the-settings-0123"
PATIENCE_S = 2.0
HEAD = b"GET /health/live HTTP/1.1\r\nHost: x\r\n"
GET = HEAD + b"\r\n"
LAST = HEAD + b"Connection: close\r\n\r\n"
BODY = b'{"input": "a text"}'
OFFER = (
    b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAEAAEAAAAIAAAAB\r\n"
)


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


def post(
    *headers: bytes, line: bytes = b"POST /v1/embeddings HTTP/1.1", body: bytes = b""
) -> bytes:
    """A request to embed, with these headers besides the usual ones."""
    usual = (b"Host: x", b"X-API-Key: " + KEY.encode(), b"Content-Type: application/json")
    return b"\r\n".join([line, *usual, *headers, b"", body])


def chunked(body: bytes) -> bytes:
    return post(b"Transfer-Encoding: chunked", body=body)


CHUNKS = b"%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY)
LENGTH = b"Content-Length: %d" % len(BODY)
CHUNKED = b"Transfer-Encoding: chunked"

LENGTHS = {
    "length and chunked": post(b"Content-Length: 5", CHUNKED, body=CHUNKS),
    "chunked and length": post(CHUNKED, b"Content-Length: 0", body=CHUNKS),
    "chunked and the same length": post(CHUNKED, b"Content-Length: %d" % len(CHUNKS), body=CHUNKS),
    "two lengths": post(LENGTH, b"Content-Length: 2", body=BODY),
    "two lengths in one": post(LENGTH + b", 2", body=BODY),
    "length with a plus": post(b"Content-Length: +%d" % len(BODY), body=BODY),
    "negative length": post(b"Content-Length: -1", body=BODY),
    "negative zero": post(b"Content-Length: -0"),
    "length in hexadecimal": post(b"Content-Length: 0x13", body=BODY),
    "length in octal": post(b"Content-Length: 0o23", body=BODY),
    "length with an underscore": post(b"Content-Length: 1_9", body=BODY),
    "length with a space": post(b"Content-Length: 1 9", body=BODY),
    "length with a fraction": post(b"Content-Length: 19.0", body=BODY),
    "length in other digits": post("Content-Length: ¹⁹".encode(), body=BODY),
    "length with a letter": post(b"Content-Length: 19a", body=BODY),
    "length of 21 digits": post(b"Content-Length: " + b"9" * 21, body=BODY),
    "empty length": post(b"Content-Length:", body=BODY),
    "length before a space": post(b"Content-Length : 19", body=BODY),
    "length in a folded line": post(b"Content-Length:\r\n 19", body=BODY),
    "unknown coding": post(b"Transfer-Encoding: xchunked", body=CHUNKS),
    "identity": post(b"Transfer-Encoding: identity", body=CHUNKS),
    "chunked is not last": post(b"Transfer-Encoding: chunked, gzip", body=CHUNKS),
    "another coding before": post(b"Transfer-Encoding: gzip, chunked", body=CHUNKS),
    "chunked twice": post(b"Transfer-Encoding: chunked, chunked", body=CHUNKS),
    "chunked twice in two headers": post(CHUNKED, CHUNKED, body=CHUNKS),
    "chunked and another header": post(CHUNKED, b"Transfer-Encoding: x", body=CHUNKS),
    "chunked with a parameter": post(CHUNKED + b";a=b", body=CHUNKS),
    "chunked in quotes": post(b'Transfer-Encoding: "chunked"', body=CHUNKS),
    "chunked after a vertical tab": post(b"Transfer-Encoding: \x0bchunked", body=CHUNKS),
    "chunked before NUL": post(CHUNKED + b"\0", body=CHUNKS),
    "chunked in a folded line": post(b"Transfer-Encoding:\r\n chunked", body=CHUNKS),
    "chunked before a space": post(b"Transfer-Encoding : chunked", body=CHUNKS),
    "empty coding": post(b"Transfer-Encoding:", body=CHUNKS),
    "chunked after a comma": post(b"Transfer-Encoding: , chunked", body=CHUNKS),
    "chunked in HTTP/1.0": post(CHUNKED, line=b"POST /v1/embeddings HTTP/1.0", body=CHUNKS),
}


@pytest.mark.parametrize("request_", LENGTHS.values(), ids=LENGTHS)
def test_a_body_of_unclear_length_is_refused(request_: bytes, connection: socket.socket) -> None:
    connection.sendall(request_ + GET)
    assert_refused(connection)


BROKEN_CHUNKS = {
    "no number": b"zz\r\nhello\r\n0\r\n\r\n",
    "no size": b"\r\nhello\r\n0\r\n\r\n",
    "minus": b"-5\r\nhello\r\n0\r\n\r\n",
    "plus": b"+5\r\nhello\r\n0\r\n\r\n",
    "prefix": b"0x5\r\nhello\r\n0\r\n\r\n",
    "underscore": b"0_5\r\nhello\r\n0\r\n\r\n",
    "space before the size": b" 5\r\nhello\r\n0\r\n\r\n",
    "21 digits": b"0" * 20 + b"5\r\nhello\r\n0\r\n\r\n",
    "more than 64 bits": b"1" + b"0" * 20 + b"\r\nhello\r\n0\r\n\r\n",
    "comma": b"5,6\r\nhello\r\n0\r\n\r\n",
    "line feed alone after the size": b"5\nhello\r\n0\r\n\r\n",
    "carriage return alone after the size": b"5\rhello\r\n0\r\n\r\n",
    "line feed in an extension": b"5;a\nb\r\nhello\r\n0\r\n\r\n",
    "data that goes on": b"5\r\nhello!!\r\n0\r\n\r\n",
    "data without an end": b"5\r\nhello0\r\n\r\n",
    "line feed alone after the data": b"5\r\nhello\n0\r\n\r\n",
    "trailer that is no header": b"5\r\nhello\r\n0\r\nnot a header\r\n\r\n",
}


@pytest.mark.parametrize("body", BROKEN_CHUNKS.values(), ids=BROKEN_CHUNKS)
def test_broken_chunks_are_refused(body: bytes, connection: socket.socket) -> None:
    connection.sendall(chunked(body) + GET)
    assert_refused(connection)


BROKEN_HEADS = {
    "line feed after the request line": b"GET /health/live HTTP/1.1\nHost: x\r\n\r\n",
    "line feed after a header": b"GET /health/live HTTP/1.1\r\nHost: x\n\r\n",
    "line feeds alone": b"GET /health/live HTTP/1.1\nHost: x\n\n",
    "carriage returns alone": b"GET /health/live HTTP/1.1\rHost: x\r\r\r\n\r\n",
    "carriage return in a value": HEAD + b"A: b\rC: d\r\n\r\n",
    "header that goes on in the next line": HEAD + b"A: b\r\n c\r\n\r\n",
    "header that goes on after a tab": HEAD + b"A: b\r\n\tc\r\n\r\n",
    "space before the first header": b"GET /health/live HTTP/1.1\r\n Host: x\r\n\r\n",
    "no colon": HEAD + b"A\r\n\r\n",
    "no name": HEAD + b": b\r\n\r\n",
    "space before the colon": HEAD + b"A : b\r\n\r\n",
    "NUL in a name": HEAD + b"A\0b: c\r\n\r\n",
    "NUL in a value": HEAD + b"A: b\0c\r\n\r\n",
    "brackets in a name": HEAD + b"A[b]: c\r\n\r\n",
    "name in other letters": HEAD + "Ä: b\r\n\r\n".encode(),
    "no host": b"GET /health/live HTTP/1.1\r\n\r\n",
    "empty host": b"GET /health/live HTTP/1.1\r\nHost:\r\n\r\n",
    "two hosts": HEAD + b"Host: y\r\n\r\n",
    "the same host twice": HEAD + b"Host: x\r\n\r\n",
    "two hosts in one": b"GET /health/live HTTP/1.1\r\nHost: x, y\r\n\r\n",
    "host with a user": b"GET /health/live HTTP/1.1\r\nHost: user@x\r\n\r\n",
    "host with a path": b"GET /health/live HTTP/1.1\r\nHost: x/docs\r\n\r\n",
    "host with a port that is none": b"GET /health/live HTTP/1.1\r\nHost: x:http\r\n\r\n",
    "HTTP/0.9": b"GET /health/live\r\n\r\n",
    "HTTP/1.2": b"GET /health/live HTTP/1.2\r\nHost: x\r\n\r\n",
    "HTTP/2.0": b"GET /health/live HTTP/2.0\r\nHost: x\r\n\r\n",
    "the beginning of HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "HTTP/9.9": b"GET /health/live HTTP/9.9\r\nHost: x\r\n\r\n",
    "HTTP/01.1": b"GET /health/live HTTP/01.1\r\nHost: x\r\n\r\n",
    "HTTP/1": b"GET /health/live HTTP/1\r\nHost: x\r\n\r\n",
    "http/1.1": b"GET /health/live http/1.1\r\nHost: x\r\n\r\n",
    "two spaces": b"GET  /health/live HTTP/1.1\r\nHost: x\r\n\r\n",
    "tabs": b"GET\t/health/live\tHTTP/1.1\r\nHost: x\r\n\r\n",
    "space in the target": b"GET /health live HTTP/1.1\r\nHost: x\r\n\r\n",
    "space at the end of the line": b"GET /health/live HTTP/1.1 \r\nHost: x\r\n\r\n",
    "no target": b"GET  HTTP/1.1\r\nHost: x\r\n\r\n",
    "NUL in the target": b"GET /health/live\0 HTTP/1.1\r\nHost: x\r\n\r\n",
    "other letters in the target": "GET /é HTTP/1.1\r\nHost: x\r\n\r\n".encode(),
    "fragment in the target": b"GET /health/live#a HTTP/1.1\r\nHost: x\r\n\r\n",
    "star for a GET": b"GET * HTTP/1.1\r\nHost: x\r\n\r\n",
    "target that is no path": b"GET health/live HTTP/1.1\r\nHost: x\r\n\r\n",
    "target of another scheme": b"GET ftp://x/health/live HTTP/1.1\r\nHost: x\r\n\r\n",
    "target with a user": b"GET http://user@x/health/live HTTP/1.1\r\nHost: x\r\n\r\n",
    "target without a host": b"GET http:///health/live HTTP/1.1\r\nHost: x\r\n\r\n",
    "method with a slash": b"GE/T /health/live HTTP/1.1\r\nHost: x\r\n\r\n",
    "two empty lines first": b"\r\n\r\n" + GET,
    "space first": b" " + GET,
    "noise": bytes(range(256)) + b"\r\n\r\n",
    "a greeting of TLS": bytes.fromhex("16030100c6010000c20303") + bytes(190) + b"\r\n\r\n",
}


@pytest.mark.parametrize("head", BROKEN_HEADS.values(), ids=BROKEN_HEADS)
def test_a_broken_head_is_refused(head: bytes, connection: socket.socket) -> None:
    connection.sendall(head + GET)
    assert_refused(connection)


@pytest.mark.parametrize("start", [HEAD + b"X-A: ", b"GET /"])
def test_a_head_without_end_is_refused(start: bytes, connection: socket.socket) -> None:
    connection.sendall(start + b"a" * MAX_HEAD_BYTES)
    assert connection.recv(12) == b"HTTP/1.1 400"


@pytest.mark.parametrize("excess", [1_000, 30_000])
def test_a_long_head_that_arrives_whole_is_refused(excess: int, connection: socket.socket) -> None:
    """In one read: the parser's own limit holds only while the end of a head is missing."""
    connection.sendall(HEAD + b"X-A: " + b"a" * (MAX_HEAD_BYTES + excess) + b"\r\n\r\n")
    assert connection.recv(12) == b"HTTP/1.1 400"


WELL_FORMED = {
    "length": post(LENGTH, body=BODY),
    "the same length twice": post(LENGTH, LENGTH, body=BODY),
    "length with zeros": post(b"Content-Length: 0019", body=BODY),
    "length between spaces": post(b"Content-Length:  \t19 \t", body=BODY),
    "chunks": chunked(CHUNKS),
    "Chunked": post(b"tRANSFER-eNCODING: Chunked", body=CHUNKS),
    "chunks with extensions": chunked(b'13;a=b;c="d e"\r\n' + BODY + b"\r\n0;f\r\n\r\n"),
    "chunks with zeros": chunked(b"00013\r\n" + BODY + b"\r\n000\r\n\r\n"),
    "a trailer": chunked(b"13\r\n" + BODY + b"\r\n0\r\nA: b\r\n\r\n"),
    "a trailer with a length": chunked(b"13\r\n" + BODY + b"\r\n0\r\nContent-Length: 99\r\n\r\n"),
    "a trailer with a coding": chunked(
        b"13\r\n" + BODY + b"\r\n0\r\nTransfer-Encoding: chunked\r\n\r\n"
    ),
    "a name like another": post(LENGTH, b"Transfer_Encoding: chunked", body=BODY),
    "an offer of WebSocket": post(
        LENGTH,
        b"Connection: Upgrade",
        b"Upgrade: websocket",
        b"Sec-WebSocket-Version: 13",
        b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
        body=BODY,
    ),
    "a target with its host": post(
        LENGTH, line=b"POST http://x:80/v1/embeddings?a=b HTTP/1.1", body=BODY
    ),
}


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


REFUSED_BODIES = {
    "no key": post(LENGTH, body=BODY).replace(KEY.encode(), b"no-key-of-this-server"),
    "no such route": post(LENGTH, line=b"POST /nowhere HTTP/1.1", body=BODY),
    "no such verb": post(LENGTH, line=b"DELETE /v1/models HTTP/1.1", body=BODY),
    "a GET with a body": post(LENGTH, line=b"GET /v1/models HTTP/1.1", body=BODY),
    "not JSON": post(b"Content-Length: %d" % len(GET), body=GET),
    "encoded": post(b"Content-Length: %d" % len(GET), b"Content-Encoding: br", body=GET),
}


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
