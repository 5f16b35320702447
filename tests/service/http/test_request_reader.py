"""Requests are read one at a time, in whatever pieces they arrive."""

from __future__ import annotations

import random
from collections.abc import Iterable
from contextlib import suppress
from itertools import pairwise
from typing import NamedTuple

import h11
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.http.request_reader import MAX_HEAD_BYTES, Head, Headers, NotHttp, RequestReader
from tests.service.http.hostile_requests import (
    BODY,
    BROKEN_CHUNKS,
    BROKEN_HEADS,
    CHUNKED,
    CHUNKS,
    GET,
    LAST,
    LENGTHS,
    OFFER,
    WELL_FORMED,
    chunked,
    post,
)


class Request(NamedTuple):
    head: Head
    body: bytes


def read(*pieces: bytes) -> list[Request]:
    """The requests that have arrived whole. Raises NotHttp."""
    reader, head, body, found = RequestReader(), None, b"", []
    for piece in pieces:
        reader.receive(piece)
        while True:
            if head is None:
                head, body = reader.read_head(), b""
            if head is None:
                break
            if reader.is_within_body:
                body += reader.read_body()
            if reader.is_within_body:
                break
            found.append(Request(head, body))
            head = None
    return found


@pytest.mark.parametrize("request_", [*WELL_FORMED.values(), GET], ids=[*WELL_FORMED, "GET"])
@given(cuts=st.lists(st.floats(0, 1), max_size=8))
def test_pieces_make_no_difference(request_: bytes, cuts: list[float]) -> None:
    content = request_ + CHUNK_OF_ENDS + request_ + LAST
    places = [0, *sorted(int(cut * len(content)) for cut in cuts), len(content)]
    assert read(*(content[start:end] for start, end in pairwise(places))) == read(content)
    assert len(read(content)) == 4


def test_one_byte_at_a_time() -> None:
    content = b"".join(WELL_FORMED.values()) + CHUNK_OF_ENDS
    assert read(*(content[at : at + 1] for at in range(len(content)))) == read(content)


CHUNK_OF_ENDS = chunked(b"9\r\n\r\n\r\n\r\n\r\na\r\n4\r\n\r\n\r\n\r\n0\r\nA: b\r\n\r\n")
"""Ends of heads as its body."""


def test_a_body_that_looks_like_ends() -> None:
    [(_, body), _] = read(CHUNK_OF_ENDS + GET)
    assert body == b"\r\n\r\n\r\n\r\na" + b"\r\n\r\n"


@pytest.mark.parametrize(
    "request_",
    [*LENGTHS.values(), *map(chunked, BROKEN_CHUNKS.values()), *BROKEN_HEADS.values()],
    ids=[*LENGTHS, *BROKEN_CHUNKS, *BROKEN_HEADS],
)
def test_what_is_refused_is_refused_in_any_pieces(request_: bytes) -> None:
    content = request_ + GET
    with pytest.raises(NotHttp):
        read(*(content[at : at + 1] for at in range(len(content))))


def test_what_follows_the_last_request_is_not_kept() -> None:
    reader = RequestReader()
    reader.receive(LAST)
    head = reader.read_head()
    assert head is not None
    assert not head.keep_alive
    reader.receive(GET)
    assert not reader.has_unread


def test_a_request_stays_behind_the_one_before_it() -> None:
    reader = RequestReader()
    reader.receive(post(CHUNKED, body=CHUNKS) + GET)
    assert reader.read_head() is not None
    assert reader.read_body() == BODY
    head = reader.read_head()
    assert head is not None
    assert (head.method, head.path) == ("GET", b"/health/live")


def test_spaces_around_values_are_no_part_of_them() -> None:
    [(head, _)] = read(b"GET / HTTP/1.1\r\nHost: \t x \t\r\nA:b  c \t\r\nD:\t\r\n\r\n")
    assert head.headers == [(b"host", b"x"), (b"a", b"b  c"), (b"d", b"")]


def test_an_offer_of_another_protocol_is_no_header() -> None:
    [(head, body)] = read(post(OFFER + b"Content-Length: 2", body=b"ab"))
    assert body == b"ab"
    assert b"upgrade" not in dict(head.headers)


@pytest.mark.parametrize("around", [b"5;" + b"a" * 100, b"5\r\nhello\r\n0\r\nA: " + b"a" * 100])
def test_what_stands_around_chunks_is_bounded(around: bytes) -> None:
    reader = RequestReader()
    reader.receive(post(CHUNKED, body=around))
    assert reader.read_head() is not None
    reader.read_body()

    def go_on() -> None:
        for _ in range(MAX_HEAD_BYTES // 1_000 + 2):
            reader.receive(b"a" * 1_000)
            reader.read_body()

    with pytest.raises(NotHttp, match=f"more than {MAX_HEAD_BYTES} bytes"):
        go_on()


MUTANTS = 10_000
PIECES = (
    *(b"\r\n", b"\n", b"\r", b"\r\n\r\n", b" ", b"\t", b":", b";", b",", b"0", b"5", b"a", b"?"),
    *(b"#", b"\0", b"\x01", b"\x7f", b"\xff", b'"', b"GET ", b"HTTP/1.0", b"0\r\n\r\n"),
    *(b"Content-Length: 5\r\n", b"Transfer-Encoding: chunked\r\n", b"Host: y\r\n"),
    *(b"Connection: close\r\n", b"Expect: 100-continue\r\n"),
)


def without_intended_differences(requests: Iterable[bytes]) -> list[bytes]:
    """Without offers of other protocols, targets with a host, and sizes of more digits than h11
    reads."""
    intended = (b"Upgrade", b"http:", b"0" * 20)
    return [one for one in requests if not any(words in one for words in intended)]


READ = without_intended_differences([*WELL_FORMED.values(), GET])
REFUSED = without_intended_differences(
    [*LENGTHS.values(), *map(chunked, BROKEN_CHUNKS.values()), *BROKEN_HEADS.values()]
)


def mutant(chance: random.Random) -> bytes:
    """Two requests, with some bytes changed."""
    first = chance.choice(chance.choice([READ, READ, READ, REFUSED]))
    content = bytearray(first + chance.choice([GET, LAST, *READ]))
    for _ in range(chance.randint(1, 3)):
        at = chance.randrange(len(content))
        stop = at + chance.choice([0, 0, 1, 4])
        content[at:stop] = chance.choice([*PIECES, b""])
    return bytes(content)


def read_until_refused(content: bytes) -> list[tuple[bytes, Headers, bytes]]:
    found = []
    reader = RequestReader()
    reader.receive(content)
    with suppress(NotHttp):
        while (head := None if reader.is_done else reader.read_head()) is not None:
            body = reader.read_body() if reader.is_within_body else b""
            if reader.is_within_body:
                break
            found.append((head.method.encode(), head.headers, body))
    return found


def read_by_h11(content: bytes) -> list[tuple[bytes, Headers, bytes]]:
    found = []
    peer, body = h11.Connection(h11.SERVER, MAX_HEAD_BYTES), b""
    peer.receive_data(content)
    with suppress(h11.RemoteProtocolError):
        while isinstance(event := peer.next_event(), h11.Request | h11.Data | h11.EndOfMessage):
            if isinstance(event, h11.Request):
                request, body = event, b""
            elif isinstance(event, h11.Data):
                body += event.data
            else:
                found.append((request.method, list(request.headers), body))
                peer.send(h11.Response(status_code=200, headers=[("content-length", "0")]))
                peer.send(h11.EndOfMessage())
                if peer.our_state is not h11.DONE or peer.their_state is not h11.DONE:
                    break
                peer.start_next_cycle()
    return found


def test_what_is_read_h11_reads_alike() -> None:
    """Another reader of the same bytes: whatever is not refused has one meaning for both."""
    chance = random.Random(1)
    num_read = 0
    for _ in range(MUTANTS):
        content = mutant(chance)
        ours, theirs = read_until_refused(content), read_by_h11(content)
        assert lowered(ours) == lowered(theirs[: len(ours)]), content
        num_read += len(ours)
    assert num_read > MUTANTS / 4, "enough of them are requests"


def lowered(requests: list[tuple[bytes, Headers, bytes]]) -> list[tuple[bytes, Headers, bytes]]:
    """h11 writes the name of a coding in small letters."""
    return [
        (method, [(name, value.lower()) for name, value in headers], body)
        for method, headers, body in requests
    ]
