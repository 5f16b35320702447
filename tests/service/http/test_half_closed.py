"""Callers that close their own side of the connection, and read on or have left."""

from __future__ import annotations

import json
import re
import socket
import sys
import time
from collections.abc import Iterator
from http.client import HTTPResponse
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.service.outside import metric, wait_for

LONG = "A long text keeps the device busy for a while. " * 6_000


@pytest.fixture(scope="module")
def serving(launch_server: Any) -> Any:
    return launch_server(LLN_MODELS="default", LLN_MAX_OPEN_BODY_BYTES="3000000")


def connect(server: Any) -> socket.socket:
    address = urlsplit(server.http_url)
    return socket.create_connection((address.hostname or "", address.port or 0), 60)


@pytest.fixture
def connection(serving: Any) -> Iterator[socket.socket]:
    with connect(serving) as opened:
        yield opened


def post(path: str, body: bytes, kind: str = "application/json", version: str = "1.1") -> bytes:
    head = f"POST {path} HTTP/{version}\r\nHost: x\r\nContent-Type: {kind}\r\n"
    return head.encode() + b"Content-Length: %d\r\n\r\n" % len(body) + body


def statuses(connection: socket.socket) -> list[int]:
    """Of all answers until the server closes the connection, interim ones aside."""
    content = b"".join(iter(lambda: connection.recv(65_536), b""))
    found = [int(status) for status in re.findall(rb"HTTP/1\.1 (\d{3}) ", content)]
    return [status for status in found if status != 100]


def in_progress(server: Any) -> float:
    return metric(server.http_url, 'lln_requests_in_progress{protocol="http"}')


EMBED = post("/v1/embeddings", json.dumps({"input": "a text " * 500}).encode())
DOCUMENT = post("/v1/documents", b"a text " * 500, "text/plain")
HEALTH = b"GET /health/live HTTP/1.1\r\nHost: x\r\n\r\n"


@pytest.mark.parametrize(
    ("requests", "number"),
    [(EMBED, 1), (DOCUMENT, 1), (HEALTH, 1), (EMBED + HEALTH + DOCUMENT, 3)],
    ids=["JSON", "a document", "without a body", "three at once"],
)
def test_a_caller_that_sends_no_more_is_answered(
    connection: socket.socket, requests: bytes, number: int
) -> None:
    connection.sendall(requests)
    connection.shutdown(socket.SHUT_WR)
    assert statuses(connection) == [200] * number


@pytest.mark.long
def test_a_caller_of_http_1_0_that_sends_no_more_is_answered(connection: socket.socket) -> None:
    """It is asked by the first byte of its answer whether it is there, as there is no interim
    answer."""
    body = json.dumps({"input": LONG[: len(LONG) // 6]}).encode()
    connection.sendall(post("/v1/embeddings", body, version="1.0"))
    connection.shutdown(socket.SHUT_WR)
    assert connection.recv(2, socket.MSG_PEEK) == b"H"
    with HTTPResponse(connection) as answer:
        answer.begin()
        content = json.loads(answer.read())
    assert (answer.version, answer.status, content["object"]) == (11, 200, "list")
    assert connection.recv(1) == b""


def test_a_request_that_is_not_whole_is_not_answered(connection: socket.socket) -> None:
    connection.sendall(EMBED[:-1])
    connection.shutdown(socket.SHUT_WR)
    assert statuses(connection) == []


def test_a_connection_that_was_answered_before_is_closed(connection: socket.socket) -> None:
    connection.sendall(HEALTH)
    assert connection.recv(65_536).startswith(b"HTTP/1.1 200")
    connection.shutdown(socket.SHUT_WR)
    assert statuses(connection) == []


@pytest.mark.parametrize("version", ["1.1", "1.0"])
def test_a_caller_that_has_left_is_noticed_all_the_same(serving: Any, version: str) -> None:
    """Both look alike until something is written."""
    with connect(serving) as connection:
        body = json.dumps({"input": [LONG] * 8}).encode()
        connection.sendall(post("/v1/embeddings", body, version=version))
        wait_for(lambda: in_progress(serving) == 1, "the request")
        connection.shutdown(socket.SHUT_WR)
    wait_for(lambda: in_progress(serving) == 0, "its end", 5)
    assert "Traceback" not in serving.log()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells without reading on")
def test_a_body_that_waits_for_room_is_answered(serving: Any) -> None:
    request = post("/v1/embeddings", b'{"input": "a text"%b}' % (b" " * 1_000_000))
    with connect(serving) as holder, connect(serving) as waiting:
        holder.sendall(request[:-1])  # more than half of the lane of large bodies
        wait_for(lambda: in_progress(serving) == 1, "the first body")
        waiting.sendall(request)
        waiting.shutdown(socket.SHUT_WR)
        wait_for(lambda: in_progress(serving) == 2, "the other")
        time.sleep(1)  # the server looks whether the caller has left
        holder.sendall(request[-1:])
        assert statuses(waiting) == [200]
