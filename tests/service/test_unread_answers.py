"""Large answers leave in pieces, and nobody who does not read one keeps it."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from starlette.types import Message

from service.errors import AnswerNotTaken
from service.http.observe import _in_pieces
from tests.service.outside import metric, wait_for

TIMEOUT_S = 6.0
START: Message = {"type": "http.response.start", "status": 200, "headers": []}
# Its states are megabytes, and so more than a connection has buffers for.
LARGE = json.dumps({"inputs": "word " * 2_500, "truncate": True}).encode()
GIVEN_UP = 'lln_requests_total{code="answer_not_taken",method="POST /embed_all",protocol="http"}'


@pytest.fixture(scope="module")
def narrow(launch_server: Any) -> Any:
    """One place, so that whoever is answered has been given it."""
    return launch_server(
        LLN_MODELS="default", LLN_MAX_OPEN_REQUESTS="1", LLN_REQUEST_TIMEOUT_S=str(TIMEOUT_S)
    )


def has_room(server: Any) -> bool:
    answer = httpx.post(f"{server.http_url}/v1/embeddings", json={"input": "x"}, timeout=60)
    assert answer.status_code in (200, 429)
    return answer.status_code == 200


def given_up(server: Any) -> float:
    page = httpx.get(f"{server.http_url}/metrics", timeout=60).text
    return metric(server.http_url, GIVEN_UP) if GIVEN_UP in page else 0


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
    """As Linux tells them; elsewhere none."""
    return len(list(Path("/proc").glob(f"{server.process.pid}/fd/*")))


def test_who_does_not_read_a_large_answer_is_given_up(narrow: Any) -> None:
    before, files = given_up(narrow), open_files(narrow)
    with unread(narrow):
        assert not has_room(narrow)
        wait_for(lambda: has_room(narrow), "the place to be free", 4 * TIMEOUT_S)
        assert given_up(narrow) == before + 1
        # Closed in order, the connection would wait for its reader.
        wait_for(lambda: open_files(narrow) <= files, "the connection to be gone", TIMEOUT_S)
    assert "Traceback" not in narrow.log()
    assert "without completing" not in narrow.log()


def test_who_leaves_a_large_answer_gives_its_place_back(narrow: Any) -> None:
    with unread(narrow):
        assert not has_room(narrow)
    wait_for(lambda: has_room(narrow), "the place to be free", TIMEOUT_S / 2)


def test_who_reads_gets_all_of_it_and_may_ask_again(narrow: Any) -> None:
    address = urlsplit(narrow.http_url)
    with closing(HTTPConnection(address.hostname or "", address.port, timeout=60)) as connection:
        for _ in range(2):
            headers = {"content-type": "application/json"}
            connection.request("POST", "/embed_all", LARGE, headers)
            answer = connection.getresponse()
            body = answer.read()
            assert int(answer.headers["content-length"]) == len(body) > 1_000_000
            assert len(json.loads(body)) == 1


def sent(*messages: Message) -> list[Message]:
    arrived: list[Message] = []

    async def send(message: Message) -> None:
        arrived.append(message)

    async def scenario() -> None:
        in_pieces = _in_pieces(send, 60)
        for message in messages:
            await in_pieces(message)

    asyncio.run(scenario())
    return arrived


def body(content: bytes, more: bool = False) -> Message:
    return {"type": "http.response.body", "body": content, "more_body": more}


def test_a_small_answer_stays_as_it_is() -> None:
    assert sent(START, body(b"x" * 65_536)) == [START, body(b"x" * 65_536)]


def test_a_large_one_ends_once_its_pieces_have_left() -> None:
    content = bytes(range(256)) * 600
    start, *pieces, last = sent(START, body(content))
    assert start == START
    assert last == body(b"")
    assert b"".join(piece["body"] for piece in pieces) == content
    assert max(len(piece["body"]) for piece in pieces) == 65_536
    assert all(piece["more_body"] for piece in pieces)


def test_a_large_part_of_a_stream_does_not_end_it() -> None:
    assert all(piece["more_body"] for piece in sent(body(b"x" * 200_000, more=True)))


def test_pieces_have_one_deadline_together() -> None:
    async def send(message: Message) -> None:
        await asyncio.sleep(0.05)

    async def scenario() -> None:
        with pytest.raises(AnswerNotTaken) as raised:
            await _in_pieces(send, 0.2)(body(b"x" * 65_536 * 10))
        assert raised.value.limit == 0.2

    asyncio.run(scenario())
