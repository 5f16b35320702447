"""Answers to callers of HTTP/1.0 and to slow ones, and what is sent before there is an answer."""

from __future__ import annotations

import asyncio
import json
import socket
from typing import Any
from urllib.parse import urlsplit

import pytest
from uvicorn.protocols.http.flow_control import FlowControl

from service.errors import AnswerNotTaken
from service.http.answer import Answer

START = {"type": "http.response.start", "status": 200, "headers": [(b"a", b"b")]}
LENGTH = (b"content-length", b"4")
BODIES = [
    {"type": "http.response.body", "body": b"ab", "more_body": True},
    {"type": "http.response.body", "body": b"cd"},
]


class Written(asyncio.Transport):
    """A connection whose caller needs a time to read each write; without one it reads at once."""

    def __init__(self, seconds_each: float | None = None) -> None:
        super().__init__()
        self.flow = FlowControl(self)
        self.writes: list[bytes] = []
        self.is_closed = False
        self._seconds_each = seconds_each

    @property
    def content(self) -> bytes:
        return b"".join(self.writes)

    def write(self, data: Any) -> None:
        self.writes.append(data)
        if self._seconds_each is not None:
            self.flow.pause_writing()
            loop = asyncio.get_running_loop()
            loop.call_later(self._seconds_each, self.flow.resume_writing)

    def close(self) -> None:
        self.is_closed = True


def answer_to(transport: Written, version: str = "1.1") -> Answer:
    return Answer(
        read_within_s=0.2,
        scope={"http_version": version, "method": "GET"},
        transport=transport,
        flow=transport.flow,
        logger=None,
        access_logger=None,
        access_log=False,
        default_headers=[],
        message_event=asyncio.Event(),
        expect_100_continue=False,
        keep_alive=version != "1.0",
        on_response=lambda: None,
    )


def answered(version: str, *messages: Any, num_asked: int = 0) -> Written:
    async def run() -> Written:
        transport = Written()
        answer = answer_to(transport, version)
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


def start(num_bytes: int) -> Any:
    return {**START, "headers": [(b"content-length", b"%d" % num_bytes)]}


def body(content: bytes, more: bool = False) -> Any:
    return {"type": "http.response.body", "body": content, "more_body": more}


def test_a_small_answer_is_written_at_once() -> None:
    small = b"x" * 65_536
    _, *bodies = answered("1.1", start(len(small)), body(small)).writes
    assert bodies == [small]


@pytest.mark.parametrize("version", ["1.0", "1.1"])
def test_a_large_answer_is_written_in_pieces(version: str) -> None:
    content = bytes(range(256)) * 600
    _, *pieces = answered(version, start(len(content)), body(content)).writes
    assert b"".join(pieces) == content
    assert max(map(len, pieces)) == 65_536


def test_a_large_part_of_a_stream_does_not_end_it() -> None:
    part, last = b"x" * 200_000, b"the end"
    transport = answered("1.1", start(len(part) + len(last)), body(part, more=True), body(last))
    assert transport.content.endswith(part + last)


@pytest.mark.parametrize("is_small", [True, False])
def test_a_caller_that_reads_too_slowly_is_given_up(is_small: bool) -> None:
    """The pieces of one body share a deadline; a small message may wait for those before it."""
    seconds_each, size = (30.0, 10) if is_small else (0.05, 65_536 * 10)

    async def scenario() -> None:
        answer = answer_to(Written(seconds_each))
        await answer.send(start(size))
        with pytest.raises(AnswerNotTaken) as raised:
            await answer.send(body(b"x" * size))
        assert raised.value.limit == 0.2

    asyncio.run(scenario())


def test_a_caller_that_reads_in_time_gets_all() -> None:
    async def scenario() -> Written:
        transport = Written(0.005)
        answer = answer_to(transport)
        for message in (start(300_000), body(b"x" * 300_000)):
            await answer.send(message)
        return transport

    assert asyncio.run(scenario()).content.endswith(b"x" * 300_000)
