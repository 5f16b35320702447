"""One HTTP connection: uvicorn's, on a parser that is stricter about heads than h11.

If a proxy and a server read one request differently, an attacker can make them disagree on where it
ends, so that part of a body counts as the next request (request smuggling). Whatever a proxy might
read differently is refused with 400, and the connection closes.
"""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Iterable
from http import HTTPStatus
from typing import Any, cast

import h11
import orjson
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from engine.errors import LLNError
from service.errors import BodyTimeout, UnreadableBody, error_fields, row_for
from service.http.middleware.observe import ABORT, HAS_LEFT
from service.http.tcp_state import CLOSE_WAIT, ESTABLISHED, state_of

MAX_HEAD_BYTES = 65_536
"""Bytes that a request line and its headers may have."""

_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
"""Clients pass over interim answers. HTTP/1.0 has none."""

_OPENING = b"HTTP/1.1 "
"""What every answer begins with."""

_LOOK_EVERY_S = 0.2
_ASK_EVERY_S = 5.0

_VERSIONS = (b"1.0", b"1.1")
_LONE_LINE_FEED = re.compile(rb"(?<!\r)\n")
_FOLDED_LINE = re.compile(rb"\n[ \t]")
_AUTHORITY = re.compile(rb"(?:\[[0-9A-Fa-f:.]+\]|[-\w.~!$&'()*+;=%]+)(?::[0-9]*)?", re.ASCII)
_ABSOLUTE_FORM = re.compile(rb"https?://([^/?#]*)(.*)", re.IGNORECASE)


class Connection(H11Protocol):
    """The parser that uvicorn would choose, httptools, drops the body of a request that offers
    another protocol (`Upgrade: h2c`), and does not limit headers and pipelined requests.
    """

    def __init__(self, *args: Any, timeout_s: float, **options: Any) -> None:
        super().__init__(*args, **options)
        self.conn: Parser = Parser()
        self._timeout_s = timeout_s
        self._timer: asyncio.TimerHandle | None = None
        self._has_ended = False  # it sends no more
        self._asked_at = -math.inf

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        # uvicorn copies this into the state of each request of the connection.
        self.app_state = {
            **self.app_state,
            ABORT: transport.abort,
            HAS_LEFT: self._caller_has_left,
        }
        self._await_caller()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_wait()
        super().connection_lost(exc)

    def eof_received(self) -> bool:  # type: ignore[override]
        """Whether the connection stays open: a caller that has sent its whole request may close its
        side, and still be answered. TLS closes both sides at once here."""
        self._has_ended = True
        if self.scheme == "https" or not self._is_owed_an_answer or self._caller_has_left():
            return False
        self._look_after_caller()
        return True

    @property
    def _is_owed_an_answer(self) -> bool:
        """Whether the request has arrived whole, and its answer has not ended."""
        cycle = cast("RequestResponseCycle | None", self.cycle)
        return cycle is not None and not (cycle.more_body or cycle.response_complete)

    def _look_after_caller(self) -> None:
        """Nothing is read any more that would tell that the caller leaves."""
        if self._is_owed_an_answer and self._caller_has_left():
            self.transport.abort()
        elif not self.transport.is_closing():
            self.loop.call_later(_LOOK_EVERY_S, self._look_after_caller)

    def _caller_has_left(self) -> bool:
        """A caller that has closed its side may have left or wait for its answer. Its system tells
        when something is written: an interim answer, until the answer itself begins; over HTTP/1.0
        a byte of the answer, which there are few of, so that each comes later than the last."""
        if self.transport.is_closing():
            return True
        state = state_of(self.transport)
        has_ended = self._has_ended if state is None else state == CLOSE_WAIT
        if not has_ended:
            return state not in (None, ESTABLISHED)
        if self.cycle.response_started:
            return False
        has_interim = self.scope["http_version"] != "1.0"
        wait_s = _ASK_EVERY_S if has_interim else _ASK_EVERY_S * 2 ** (self.conn.num_ahead - 1)
        if self.loop.time() - self._asked_at >= wait_s:
            self._asked_at = self.loop.time()
            self.transport.write(_CONTINUE if has_interim else self.conn.send_ahead())
        return False

    def handle_events(self) -> None:
        super().handle_events()
        self._watch_caller()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._has_ended and not self._is_owed_an_answer:
            self.transport.close()
        self._watch_caller()

    def send_400_response(self, msg: str) -> None:
        error = UnreadableBody(
            f"this is not HTTP/1.1 as the server reads it: {self.conn.violation}",
            code="invalid_http",
        )
        self._refuse(error)

    def _should_upgrade(self) -> bool:
        """Offers of other protocols are passed over: the request is answered in this one."""
        return False

    def _watch_caller(self) -> None:
        """Without a limit, a caller that sends a byte a minute would keep its connection for
        ever. The rest of a body that is being read has a limit of its own."""
        if self.conn.is_within_head or self.conn.is_past_answer:
            self._await_caller()
        else:
            self._end_wait()

    def _await_caller(self) -> None:
        if self._timer is None:
            self._timer = self.loop.call_later(self._timeout_s, self._give_up)

    def _end_wait(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _give_up(self) -> None:
        if self.transport.is_closing():
            return
        if not self.conn.is_within_head:  # browsers connect ahead of need
            self.transport.close()
            return
        limit = self._timeout_s
        self._refuse(
            BodyTimeout(f"the request's head did not arrive within {limit:g} s", limit=limit)
        )

    def _refuse(self, error: LLNError) -> None:
        """Answers, unless an answer has begun or was given, and closes the connection."""
        cycle = cast("RequestResponseCycle | None", self.cycle)
        if cycle and not cycle.response_complete:
            cycle.disconnected = True  # its handler can send no answer after ours
            cycle.message_event.set()
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            self.transport.close()
            return
        # Not by h11, which would send no body in answer to a HEAD that was refused on reading.
        answer = _answer_of(error, self.server_state.default_headers)
        self.transport.write(answer[self.conn.num_ahead :])
        self.transport.close()


def _answer_of(error: LLNError, headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    content = orjson.dumps({"error": error_fields(error)})
    status = HTTPStatus(row_for(error).http_status)
    lines = [
        f"HTTP/1.1 {status.value} {status.phrase}".encode(),
        *(b"%b: %b" % pair for pair in headers),
        b"content-type: application/json",
        b"content-length: %d" % len(content),
        b"connection: close",
    ]
    return b"\r\n".join([*lines, b"", content])


class Parser(h11.Connection):
    """h11's parser, without what it is lenient about in heads.

    It limits a head only while its end has not arrived, so that a longer one passes if it arrives
    in one read. It also accepts both ways to state a body's length, ends of lines without a
    carriage return, folded lines, and a Host that is none.
    """

    def __init__(self) -> None:
        super().__init__(h11.SERVER, MAX_HEAD_BYTES)
        self.violation = ""
        self.num_ahead = 0
        """Bytes of the answer that were sent before there was one. Only the last request of a
        connection has such."""

    @property
    def is_within_head(self) -> bool:
        """Whether a part of a head has arrived."""
        return self.their_state is h11.IDLE and bool(self.trailing_data[0])

    @property
    def is_past_answer(self) -> bool:
        """Whether the request was answered before its body's end, which is still read."""
        return self.our_state is h11.DONE and self.their_state is h11.SEND_BODY

    def send_ahead(self) -> bytes:
        """The next byte of any answer, and none after the last that all have in common."""
        byte = _OPENING[self.num_ahead : self.num_ahead + 1]
        self.num_ahead += len(byte)
        return byte

    def send_with_data_passthrough(self, event: h11.Event) -> list[bytes] | None:
        pieces = super().send_with_data_passthrough(event)
        if pieces and isinstance(event, h11.Response):
            pieces[0] = pieces[0][self.num_ahead :]
        return pieces

    def next_event(self) -> Any:
        unread = self.trailing_data[0] if self.their_state is h11.IDLE else b""
        try:
            event = super().next_event()
            if not isinstance(event, h11.Request):
                return event
            head = unread[: len(unread) - len(self.trailing_data[0])]
            _check_head(head, event)
            return _in_origin_form(event)
        except h11.RemoteProtocolError as error:
            self.violation = _stranger_in(unread) or str(error)
            raise


def _stranger_in(head: bytes) -> str | None:
    """What is wrong with the first line if its letters are: clients send them without a word."""
    line = head.partition(b"\r\n")[0]
    stranger = next((byte for byte in line if byte > 0x7E), None)
    if stranger is None:
        return None
    return f"its first line has the byte {stranger:#04x}; percent-encode what is not ASCII (%C3%A9)"


def _check_head(head: bytes, request: h11.Request) -> None:
    names = {name for name, _ in request.headers}
    if len(head) > MAX_HEAD_BYTES:
        raise h11.RemoteProtocolError(f"the head has more than {MAX_HEAD_BYTES} bytes")
    if request.http_version not in _VERSIONS:
        raise h11.RemoteProtocolError("the version is not HTTP/1.1 or HTTP/1.0")
    if _LONE_LINE_FEED.search(head):
        raise h11.RemoteProtocolError("a line of the head ends without a carriage return")
    if _FOLDED_LINE.search(head):
        raise h11.RemoteProtocolError("a header continues on the next line")
    if {b"content-length", b"transfer-encoding"} <= names:
        raise h11.RemoteProtocolError("two lengths of the body")
    if b"transfer-encoding" in names and request.http_version == b"1.0":
        raise h11.RemoteProtocolError("HTTP/1.0 has no Transfer-Encoding")
    for name, value in request.headers:
        if name == b"host":
            _check_authority(value, "Host")


def _check_authority(value: bytes, place: str) -> None:
    if not _AUTHORITY.fullmatch(value):
        raise h11.RemoteProtocolError(f"{place} names no host, or more than that")


def _in_origin_form(request: h11.Request) -> h11.Request:
    """The request with the path alone as its target, and its host in the Host header."""
    target, headers = request.target, request.headers
    if b"#" in target:
        raise h11.RemoteProtocolError("the target has a fragment")
    if target.startswith(b"/") or (target == b"*" and request.method == b"OPTIONS"):
        return request
    if request.method == b"CONNECT":
        return request  # refused as a method that no route has
    absolute = _ABSOLUTE_FORM.fullmatch(target)
    if absolute is None:
        raise h11.RemoteProtocolError("the target is not a path")
    host, path = absolute.groups()
    _check_authority(host, "the target")
    if not path.startswith(b"/"):
        path = b"/" + path
    kept = [(name, value) for name, value in headers if name != b"host"]
    return h11.Request(
        method=request.method,
        headers=[(b"host", host), *kept],
        target=path,
        http_version=request.http_version,
    )
