"""A server that is asked to stop takes the requests that are still arriving, and answers them."""

from __future__ import annotations

import json
import signal
import socket
import time
from contextlib import ExitStack
from http.client import HTTPResponse
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests.service.batches.routes import END, FORM, HEAD
from tests.service.outside import metric, wait_for

TEXT = b"A text that arrives in two parts. " * 100
JSON = {"content-type": "application/json"}
FILE = HEAD + TEXT + END
REQUESTS = {
    "/v1/files": (FORM, FILE),
    "/v1/embeddings": (JSON, json.dumps({"input": TEXT.decode()}).encode()),
    "/v1/documents": ({"content-type": "text/plain"}, TEXT),
}


def connect(server: Any) -> socket.socket:
    address = urlsplit(server.http_url)
    return socket.create_connection((address.hostname or "", address.port or 0), 30)


def head_of(path: str, headers: dict[str, str], num_bytes: int) -> bytes:
    fields = {"host": "x", "content-length": str(num_bytes), **headers}
    lines = [f"POST {path} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items())]
    return "\r\n".join([*lines, "", ""]).encode()


def answer_on(connection: socket.socket) -> tuple[int, dict[str, Any]]:
    with HTTPResponse(connection) as answer:
        answer.begin()
        return answer.status, json.loads(answer.read())


def test_requests_that_arrive_as_the_server_stops_are_taken(start_server: Any) -> None:
    server = start_server(LLN_MODELS="default", LLN_ENGINE__DRAIN_TIMEOUT_S="20")
    with ExitStack() as opened:
        connections = {}
        for path, (headers, body) in REQUESTS.items():
            connections[path] = opened.enter_context(connect(server))
            connections[path].sendall(head_of(path, headers, len(body)) + body[:200])
        wait_for(
            lambda: metric(server.http_url, 'lln_requests_in_progress{protocol="http"}') == 3,
            "the requests",
        )
        server.process.send_signal(signal.SIGTERM)
        wait_for(lambda: '"event":"draining"' in server.log(), "the drain")
        time.sleep(0.5)
        for path, (_, body) in REQUESTS.items():
            connections[path].sendall(body[200:])
        answers = {path: answer_on(connection) for path, connection in connections.items()}
    assert {path: status for path, (status, _) in answers.items()} == dict.fromkeys(REQUESTS, 200)
    assert server.process.wait(30) == 0, server.log()
    stored = Path(server.log_path.parent, "batches", "files", answers["/v1/files"][1]["id"])
    assert stored.read_bytes() == TEXT
    assert "Traceback" not in server.log()


def test_an_upload_that_does_not_arrive_in_time_is_answered_and_leaves_nothing(
    start_server: Any,
) -> None:
    server = start_server(LLN_MODELS="default", LLN_ENGINE__DRAIN_TIMEOUT_S="0.5")
    with connect(server) as connection:
        connection.sendall(head_of("/v1/files", FORM, len(FILE)) + FILE[:200])
        files = Path(server.log_path.parent, "batches", "files")
        wait_for(lambda: len(list(files.iterdir())) == 1, "the upload")
        server.process.send_signal(signal.SIGTERM)
        status, answer = answer_on(connection)
    assert (status, answer["error"]["type"]) == (503, "service_unavailable")
    assert server.process.wait(30) == 0, server.log()
    assert list(files.iterdir()) == []
    assert "Traceback" not in server.log()
