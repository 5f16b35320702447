"""Answers to callers of HTTP/1.0, and what is sent of an answer before there is one."""

from __future__ import annotations

import asyncio
import json
import socket
from typing import Any
from urllib.parse import urlsplit

import pytest
from uvicorn.protocols.http.flow_control import FlowControl

from service.http.answer import Answer

START = {"type": "http.response.start", "status": 200, "headers": [(b"a", b"b")]}
LENGTH = (b"content-length", b"4")
BODIES = [
    {"type": "http.response.body", "body": b"ab", "more_body": True},
    {"type": "http.response.body", "body": b"cd"},
]


class Written(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self.content = b""
        self.is_closed = False

    def write(self, data: Any) -> None:
        self.content += data

    def close(self) -> None:
        self.is_closed = True


def answered(version: str, *messages: Any, num_asked: int = 0) -> Written:
    async def run() -> Written:
        transport = Written()
        answer = Answer(
            scope={"http_version": version, "method": "GET"},
            transport=transport,
            flow=FlowControl(transport),
            logger=None,
            access_logger=None,
            access_log=False,
            default_headers=[],
            message_event=asyncio.Event(),
            expect_100_continue=False,
            keep_alive=version != "1.0",
            on_response=lambda: None,
        )
        for asked in range(num_asked):
            answer.send_ahead()
            assert answer.num_ahead == min(asked + 1, len(b"HTTP/1.1 "))
        for message in messages:
            await answer.send(message)
        return transport

    return asyncio.run(run())


@pytest.mark.parametrize("num_asked", [1, 3, 12])
@pytest.mark.parametrize("headers", [[], [LENGTH]], ids=["until it closes", "with a length"])
def test_what_was_sent_ahead_is_where_an_answer_begins(num_asked: int, headers: Any) -> None:
    """A caller is asked once more after 5 seconds, then after 10, and so on."""
    messages = ({**START, "headers": headers}, *BODIES)
    asked = answered("1.0", *messages, num_asked=num_asked)
    assert asked.content == answered("1.0", *messages).content
    assert asked.content.startswith(b"HTTP/1.1 200 ")
    assert asked.is_closed


def test_callers_of_http_1_0_get_no_chunks() -> None:
    head, _, body = answered("1.0", START, *BODIES).content.partition(b"\r\n\r\n")
    assert body == b"abcd"
    assert b"transfer-encoding" not in head
    assert b"connection: close" in head


def test_others_get_chunks() -> None:
    written = answered("1.1", START, *BODIES)
    assert written.content.endswith(b"\r\n\r\n2\r\nab\r\n2\r\ncd\r\n0\r\n\r\n")
    assert not written.is_closed


def test_a_stated_length_holds() -> None:
    start = {**START, "headers": [LENGTH]}
    assert answered("1.0", start, *BODIES).content.endswith(b"\r\n\r\nabcd")
    for version in ("1.0", "1.1"):
        with pytest.raises(RuntimeError, match="shorter than Content-Length"):
            answered(version, start, BODIES[1])


def test_a_stream_over_http_1_0(server: Any) -> None:
    address = urlsplit(server.http_url)
    body = b"One sentence. Another one. " * 40
    with socket.create_connection((address.hostname or "", address.port or 0), 60) as connection:
        connection.sendall(
            b"POST /v1/documents HTTP/1.0\r\nContent-Type: text/plain\r\n"
            b"Accept: application/x-ndjson\r\nContent-Length: %d\r\n\r\n" % len(body) + body
        )
        content = b"".join(iter(lambda: connection.recv(65_536), b""))
    head, _, lines = content.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 ")
    assert b"transfer-encoding" not in head.lower()
    assert all(json.loads(line) for line in lines.splitlines())
