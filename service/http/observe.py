"""The outermost layer: every request gets an id, an answer, a metric and a log line."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import ip_address
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from engine.errors import EngineUnavailable, LLNError, RequestCancelled
from service.errors import AnswerNotTaken, as_lln_error
from service.http.connection import abort_connection
from service.http.errors import error_response
from service.metrics import OK, UNMATCHED, Metrics
from service.request_ids import HEADER, current_request_id, take_or_make
from service.slow_callers import takes_within

log = logging.getLogger("service.access")

METRICS = "/metrics"

_PIECE_BYTES = 65_536

_QUIET = ("GET /health", "GET /health/live", "GET /health/ready", f"GET {METRICS}")


@dataclass(eq=False)
class RequestRecord:
    """What is known of a request by its end. Handlers fill `tokens`, `model` and `told`."""

    request_id: str
    started_at: float
    peer: str | None = None  # the address it came from
    status: int | None = None
    code: str = RequestCancelled.code
    told: LLNError | None = None  # a failure that is part of an answer that had begun
    tokens: int | None = None
    model: str | None = None

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self.started_at


class Observe:
    """Answers every failure below it, counts and logs every request."""

    def __init__(
        self, app: ASGIApp, metrics: Metrics, methods: Collection[str], taken_within_s: float
    ) -> None:
        self._app = app
        self._metrics = metrics
        self._methods = frozenset(methods)
        self._taken_within_s = taken_within_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        record = RequestRecord(
            take_or_make(headers.get(HEADER)),
            started_at=time.perf_counter(),
            peer=_peer(scope),
        )
        scope.setdefault("state", {})["record"] = record
        current_request_id.set(record.request_id)
        mark_and_send = _marking(_in_pieces(send, self._taken_within_s), record)
        tracing = self._metrics.tracing
        with self._in_progress(scope), tracing.request("http", headers.get) as span:
            try:
                await self._answer(scope, receive, mark_and_send, record)
            finally:
                method = self._method_label(scope)
                fields = _log_fields(method, record)
                self._finish(method, record, fields)
                span.describe(method, fields)

    def _in_progress(self, scope: Scope) -> AbstractContextManager[None]:
        """A scrape that counted itself would never read 0."""
        return nullcontext() if scope["path"] == METRICS else self._metrics.in_progress("http")

    async def _answer(
        self, scope: Scope, receive: Receive, send: Send, record: RequestRecord
    ) -> None:
        try:
            await self._app(scope, receive, send)
            record.code = record.told.code if record.told else OK
        except asyncio.CancelledError:  # not by the caller: that would be a RequestCancelled
            await self._answer_failure(_out_of_time(), scope, receive, send, record)
        except Exception as error:
            await self._answer_failure(error, scope, receive, send, record)

    async def _answer_failure(
        self, failure: Exception, scope: Scope, receive: Receive, send: Send, record: RequestRecord
    ) -> None:
        error = as_lln_error(failure)
        record.code = error.code
        if error is not failure:
            log.error("request failed", exc_info=failure)
        if isinstance(error, AnswerNotTaken):
            await abort_connection(scope)
        if record.status is not None:
            if isinstance(error, RequestCancelled):  # nobody is there to be told
                return
            raise failure  # too late for another status: the connection must break
        await error_response(error)(scope, receive, send)

    def _method_label(self, scope: Scope) -> str:
        """The verb and the route's template: a label of few values, whatever is asked for."""
        # A body that is too large is refused before there is a route; a plain path names it too.
        path = getattr(scope.get("route"), "path", scope["path"])
        label = f"{scope['method']} {path}"
        return label if label in self._methods else UNMATCHED

    def _finish(self, method: str, record: RequestRecord, fields: dict[str, Any]) -> None:
        self._metrics.request_finished(
            protocol="http", method=method, code=record.code, seconds=record.seconds
        )
        quiet = method in _QUIET and record.code == OK
        level = logging.DEBUG if quiet else logging.INFO
        log.log(level, "request", extra={"fields": fields})


def _peer(scope: Scope) -> str | None:
    """Where a request comes from."""
    host, _ = scope.get("client") or ("", 0)
    return _address(host)


@lru_cache(maxsize=1024)
def _address(host: str) -> str | None:
    """Behind a proxy on this machine it is what the proxy says, and a caller on this machine can
    pose as one: only an address is believed."""
    try:
        return str(ip_address(host))
    except ValueError:
        return None


def _out_of_time() -> EngineUnavailable:
    return EngineUnavailable("the server stopped before the answer was ready", code="stopped")


def _marking(send: Send, record: RequestRecord) -> Send:
    """A send that adds the request's id to the answer and remembers the status."""

    async def mark_and_send(message: Message) -> None:
        if message["type"] == "http.response.start":
            record.status = message["status"]
            MutableHeaders(scope=message)[HEADER] = record.request_id
        await send(message)

    return mark_and_send


def _in_pieces(send: Send, taken_within_s: float) -> Send:
    """A send that has done with a large body when its caller has taken it, all but one piece, and
    raises AnswerNotTaken. The server takes a whole one at once, and keeps what nobody reads."""

    async def send_in_pieces(message: Message) -> None:
        if len(message.get("body", b"")) <= _PIECE_BYTES:
            await send(message)
            return
        async with takes_within(taken_within_s):
            for piece in _pieces(message):
                await send(piece)

    return send_in_pieces


def _pieces(message: Message) -> Iterator[Message]:
    body: bytes = message["body"]
    for start in range(0, len(body), _PIECE_BYTES):
        yield {**message, "body": body[start : start + _PIECE_BYTES], "more_body": True}
    yield {**message, "body": b""}  # is sent once the others have left


def _log_fields(method: str, record: RequestRecord) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "method": method,
        "status": record.status,
        "code": record.code,
        "seconds": round(record.seconds, 6),
        "tokens": record.tokens,
        "model": record.model,
        "peer": record.peer,
    }
    return {name: value for name, value in fields.items() if value is not None}
