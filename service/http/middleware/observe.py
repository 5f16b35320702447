"""The outermost middleware: every request gets an id, an answer, a metric and a log line.

An exception raised anywhere below becomes the JSON error of its kind here. If the answer has
already begun, the connection breaks instead.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Collection
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import ip_address
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from engine.errors import EngineUnavailable, LLNError, RequestCancelled
from service.errors import AnswerNotTaken, as_lln_error
from service.http.errors import error_response
from service.logs import REQUEST_ID_HEADER, current_request_id, request_id_from
from service.metrics import OK, UNMATCHED, Metrics
from service.repeated_headers import has_repeats, merged

log = logging.getLogger("service.access")

METRICS_PATH = "/metrics"

ABORT = "abort_connection"
"""Key in a connection's state under which the server puts the transport's `abort`."""

HAS_LEFT = "caller_has_left"
"""Key under which the server puts a function: whether the caller has closed the connection, also
while nothing is read from it."""

_QUIET = ("GET /health", "GET /health/live", "GET /health/ready", f"GET {METRICS_PATH}")
"""Logged at DEBUG when they succeed."""


@dataclass(eq=False)
class RequestRecord:
    """What metrics and the log say about a request. Handlers set `model` and `tokens`."""

    request_id: str
    started_at: float
    peer: str | None = None  # the caller's address
    status: int | None = None
    code: str = RequestCancelled.code
    stream_error: LLNError | None = None  # sent as the last event of a stream
    tokens: int | None = None
    model: str | None = None

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self.started_at


class ObserveMiddleware:
    """Answers every failure raised below it; counts, traces and logs every request."""

    def __init__(self, app: ASGIApp, metrics: Metrics, methods: Collection[str]) -> None:
        self._app = app
        self._metrics = metrics
        self._methods = frozenset(methods)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        _merge_headers(scope)
        headers = Headers(scope=scope)
        record = RequestRecord(
            request_id_from(headers.get(REQUEST_ID_HEADER)),
            started_at=time.perf_counter(),
            peer=_peer(scope),
        )
        scope.setdefault("state", {})["record"] = record
        current_request_id.set(record.request_id)
        send = _recording(send, record)
        tracing = self._metrics.tracing
        with self._in_progress(scope), tracing.request("http", headers.get) as span:
            try:
                await self._answer(scope, receive, send, record)
            finally:
                method = self._method_label(scope)
                fields = _log_fields(method, record)
                self._finish(method, record, fields)
                span.describe(method, fields)

    def _in_progress(self, scope: Scope) -> AbstractContextManager[None]:
        """A scrape does not count itself: the gauge would never read 0."""
        return nullcontext() if scope["path"] == METRICS_PATH else self._metrics.in_progress("http")

    async def _answer(
        self, scope: Scope, receive: Receive, send: Send, record: RequestRecord
    ) -> None:
        try:
            await self._app(scope, receive, send)
            record.code = record.stream_error.code if record.stream_error else OK
        except asyncio.CancelledError:
            # The server is stopping. A caller that leaves raises RequestCancelled instead.
            stopped = EngineUnavailable(
                "the server stopped before the answer was ready", code="stopped"
            )
            await self._answer_failure(stopped, scope, receive, send, record)
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
            await _abort_connection(scope)
        if record.status is not None:
            if isinstance(error, RequestCancelled):  # the caller is gone
                return
            raise failure  # too late for another status: the connection must break
        shape = scope["app"].state.dialects.error_shape(scope["path"])
        await error_response(error, shape)(scope, receive, send)

    def _method_label(self, scope: Scope) -> str:
        """The verb and the route's template: few values, whatever callers request."""
        # A request refused before routing has no route; its plain path may still name one.
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


def _merge_headers(scope: Scope) -> None:
    """Headers that come more than once, for all that read them below."""
    if has_repeats(scope["headers"]):
        pairs = merged(Headers(scope=scope).items())
        scope["headers"] = [
            (name.encode("latin-1"), value.encode("latin-1")) for name, value in pairs
        ]


async def _abort_connection(scope: Scope) -> None:
    """Drops what the caller has not read. Closing the connection would wait for it for ever."""
    if abort := scope.get("state", {}).get(ABORT):
        abort()
        await asyncio.sleep(0)  # uvicorn notices in this turn; else it logs an incomplete answer


def _peer(scope: Scope) -> str | None:
    """The caller's address."""
    host, _ = scope.get("client") or ("", 0)
    return _address(host)


@lru_cache(maxsize=1024)
def _address(host: str) -> str | None:
    """`host` if it is an IP address. Behind a local proxy it comes from a header, and any local
    caller can send that header, with anything in it."""
    try:
        return str(ip_address(host))
    except ValueError:
        return None


def _recording(send: Send, record: RequestRecord) -> Send:
    """A send that adds the request's id to the answer and records the status."""

    async def record_and_send(message: Message) -> None:
        if message["type"] == "http.response.start":
            record.status = message["status"]
            MutableHeaders(scope=message)[REQUEST_ID_HEADER] = record.request_id
        await send(message)

    return record_and_send


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
