"""Connections as clients make them: offers of other protocols, heads without end, pipelines."""

from __future__ import annotations

import json
import re
import socket
import time
from collections.abc import Iterator
from contextlib import closing
from http.client import HTTPResponse
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from service.http.connection import MAX_HEAD_BYTES

KEY = "a-key-of-the-settings-0123"
HEAD = b"GET /health/live HTTP/1.1\r\nHost: x\r\n"
OFFER = (
    b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAEAAEAAAAIAAAAB\r\n"
)


@pytest.fixture(scope="module")
def locked(launch_server: Any) -> Any:
    return launch_server(LLN_MODELS="default", LLN_API_KEYS=KEY)


@pytest.fixture
def connection(locked: Any) -> Iterator[socket.socket]:
    address = urlsplit(locked.http_url)
    with socket.create_connection((address.hostname or "", address.port or 0), 30) as opened:
        yield opened


def memory_mb(server: Any) -> float:
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    found = re.search(r"VmRSS:\s+(\d+)", status)
    assert found is not None
    return int(found[1]) / 1024


@pytest.mark.parametrize("pause_s", [0, 0.2])
def test_who_offers_another_protocol_is_answered_in_this_one(
    connection: socket.socket, pause_s: float
) -> None:
    """As curl --http2 and Java's HttpClient do, the latter with the body on its own."""
    body = json.dumps({"input": "a text"}).encode()
    head = b"POST /v1/embeddings HTTP/1.1\r\nHost: x\r\nX-API-Key: %b\r\n" % KEY.encode()
    head += b"Content-Type: application/json\r\nContent-Length: %d\r\n" % len(body)
    segments = [head + OFFER + b"\r\n", body]
    for segment in segments if pause_s else [b"".join(segments)]:
        connection.sendall(segment)
        time.sleep(pause_s)
    with closing(HTTPResponse(connection)) as answer:
        answer.begin()
        assert answer.status == 200
        assert len(json.loads(answer.read())["data"]) == 1


@pytest.mark.parametrize("start", [HEAD + b"X-A: ", b"GET /"])
def test_a_head_without_end_is_refused(connection: socket.socket, start: bytes) -> None:
    connection.sendall(start + b"a" * MAX_HEAD_BYTES)
    assert connection.recv(12) == b"HTTP/1.1 400"


def test_a_long_head_is_read(connection: socket.socket) -> None:
    connection.sendall(HEAD + b"X-A: " + b"a" * (MAX_HEAD_BYTES - 1_000) + b"\r\n\r\n")
    assert connection.recv(12) == b"HTTP/1.1 200"


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads memory as Linux tells it")
def test_requests_ahead_of_their_answers_wait_outside(
    locked: Any, connection: socket.socket
) -> None:
    """Nobody reads the answers: what the server would read ahead of them, it would have to keep."""
    before = memory_mb(locked)
    connection.settimeout(10)
    with pytest.raises(TimeoutError):
        connection.sendall((HEAD + b"\r\n") * 2_000_000)
    assert memory_mb(locked) - before < 50
