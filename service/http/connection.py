"""One HTTP connection: uvicorn's, with a reader that reads no further than it answers.

Whatever the reader refuses is refused with 400, and the connection closes.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Iterable
from http import HTTPStatus
from typing import Any
from urllib.parse import unquote

import orjson
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from engine.errors import LLNError
from service.errors import BodyTimeout, UnreadableBody, error_fields, row_for
from service.http.answer import Answer
from service.http.middleware.observe import ABORT, HAS_LEFT
from service.http.request_reader import Head, NotHttp, RequestReader
from service.http.tcp_state import CLOSE_WAIT, ESTABLISHED, state_of

log = logging.getLogger(__name__)

_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
"""Clients pass over interim answers. HTTP/1.0 has none."""

_LOOK_EVERY_S = 0.2
_ASK_EVERY_S = 5.0


class Connection(HttpToolsProtocol):
    """uvicorn's alone does not limit headers and pipelined requests, and drops the body of a
    request that offers another protocol (`Upgrade: h2c`)."""

    cycle: Answer | None  # type: ignore[assignment]

    def __init__(
        self, *args: Any, timeout_s: float, answer_timeout_s: float, **options: Any
    ) -> None:
        super().__init__(*args, **options)
        self._reader = RequestReader()
        self._timeout_s = timeout_s
        self._answer_timeout_s = answer_timeout_s
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
        self._reader.close()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._unset_keepalive_if_required()
        self._reader.receive(data)
        self._read()

    def eof_received(self) -> bool:  # type: ignore[override]
        """Whether the connection stays open: a caller that has sent its whole request may close its
        side, and still be answered. TLS closes both sides at once here."""
        self._has_ended = True
        if self.scheme == "https" or not self._is_owed_an_answer or self._caller_has_left():
            return False
        self._look_after_caller()
        return True

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._read()
        if self._has_ended and not self._is_owed_an_answer:
            self.transport.close()

    def _read(self) -> None:
        try:
            while self._read_next():
                pass
        except NotHttp as error:
            log.warning("invalid HTTP: %s", error)
            message = f"this is not HTTP/1.1 as the server reads it: {error}"
            self._refuse(UnreadableBody(message, code="invalid_http"))
        else:
            self._watch_caller()

    def _read_next(self) -> bool:
        """Whether there may be more to read now."""
        reader = self._reader
        if self.transport.is_closing():
            return False
        if reader.is_within_body:
            self._take_body(reader.read_body())
            return not reader.is_within_body
        if self._is_answering:  # requests ahead of their answers wait outside
            if reader.has_unread and not reader.is_done:
                self.flow.pause_reading()
            return False
        head = None if reader.is_done else reader.read_head()
        if head is not None:
            self._answer(head)
        return head is not None

    def _answer(self, head: Head) -> None:
        self._unset_keepalive_if_required()
        self.scope = {
            "type": "http",
            "asgi": {"version": self.asgi_version, "spec_version": "2.3"},
            "http_version": head.version,
            "server": self.server,
            "client": self.client,
            "scheme": self.scheme,  # type: ignore[typeddict-item]
            "method": head.method,
            "root_path": self.root_path,
            "path": self.root_path + unquote(head.path.decode()),
            "raw_path": self.root_path.encode() + head.path,
            "query_string": head.query,
            "headers": head.headers,
            "state": self.app_state.copy(),
        }
        self.cycle = Answer(
            read_within_s=self._answer_timeout_s,
            scope=self.scope,
            transport=self.transport,
            flow=self.flow,
            logger=self.logger,
            access_logger=self.access_logger,
            access_log=self.access_log,
            default_headers=self.server_state.default_headers,
            message_event=asyncio.Event(),
            expect_100_continue=head.expects_continue,
            keep_alive=head.keep_alive,
            on_response=self.on_response_complete,
        )
        if not self._reader.is_within_body:
            self._take_body(b"")
        self._start_asgi_task(self.cycle, self.app)

    def _take_body(self, body: bytes) -> None:
        cycle = self.cycle
        if cycle is None or cycle.response_complete:  # it needed no body
            return
        cycle.body += body
        if len(cycle.body) > HIGH_WATER_LIMIT:
            self.flow.pause_reading()
        cycle.more_body = self._reader.is_within_body
        cycle.message_event.set()

    @property
    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    @property
    def _is_owed_an_answer(self) -> bool:
        """Whether the request has arrived whole, and its answer has not ended."""
        return self._is_answering and not self._reader.is_within_body

    @property
    def _is_within_head(self) -> bool:
        """Whether a part of a head has arrived."""
        reader = self._reader
        return reader.has_unread and not reader.is_within_body and not self._is_answering

    @property
    def _is_past_answer(self) -> bool:
        """Whether the request was answered before its body's end, which is still read."""
        return self._reader.is_within_body and not self._is_answering

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
        cycle = self.cycle
        if cycle is None or cycle.response_started:
            return False
        has_interim = self.scope["http_version"] != "1.0"
        wait_s = _ASK_EVERY_S if has_interim else _ASK_EVERY_S * 2 ** (cycle.num_ahead - 1)
        if self.loop.time() - self._asked_at >= wait_s:
            self._asked_at = self.loop.time()
            if has_interim:
                self.transport.write(_CONTINUE)
            else:
                cycle.send_ahead()
        return False

    def _watch_caller(self) -> None:
        """Without a limit, a caller that sends a byte a minute would keep its connection for
        ever. The rest of a body that is being read has a limit of its own."""
        if self._is_within_head or self._is_past_answer:
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
        if not self._is_within_head:  # browsers connect ahead of need
            self.transport.close()
            return
        limit = self._timeout_s
        self._refuse(
            BodyTimeout(f"the request's head did not arrive within {limit:g} s", limit=limit)
        )

    def _refuse(self, error: LLNError) -> None:
        """Answers, unless an answer has begun or was given, and closes the connection."""
        cycle = self.cycle
        if cycle is not None and self._reader.is_within_body:
            has_begun = cycle.response_started
            cycle.disconnected = True  # its handler can send no answer after ours
            cycle.message_event.set()
            if has_begun:
                self.transport.close()
                return
        self.transport.write(_answer_of(error, self.server_state.default_headers))
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
