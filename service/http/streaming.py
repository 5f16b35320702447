"""Answers that are streams of events: one line of JSON for each, sent while the work continues."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

import orjson
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from engine.errors import RequestCancelled
from service.errors import as_lln_error, error_fields
from service.fairness import write_timeout
from service.http.media_types import NDJSON
from service.http.middleware.observe import RequestRecord

log = logging.getLogger(__name__)

SendEvent: TypeAlias = Callable[[dict[str, Any]], Awaitable[None]]


class EventStream(Response):
    """Runs work that sends events.

    A failure before the first event is answered with its own status. A later one becomes the last
    event, `{"event": "error", "error": {...}}`, which the caller must read within `timeout_s`.
    """

    def __init__(
        self,
        work: Callable[[SendEvent], Awaitable[None]],
        record: RequestRecord,
        timeout_s: float,
    ) -> None:
        super().__init__(media_type=NDJSON)
        self._work = work
        self._record = record
        self._timeout_s = timeout_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        lines = _Lines(send, [(b"content-type", NDJSON.encode()), (b"cache-control", b"no-store")])
        try:
            await self._work(lines.send)
        except Exception as failure:
            error = as_lln_error(failure)
            if not lines.started or isinstance(error, RequestCancelled):
                raise
            if error is not failure:
                log.exception("the work failed after the answer had begun")
            self._record.stream_error = error
            async with write_timeout(self._timeout_s):
                await lines.send({"event": "error", "error": error_fields(error)})
        async with write_timeout(self._timeout_s):
            await lines.end()


class _Lines:
    """A response body of JSON lines. The status is sent with the first line."""

    def __init__(self, send: Send, headers: list[tuple[bytes, bytes]]) -> None:
        self._send = send
        self._headers = headers
        self.started = False

    async def send(self, event: dict[str, Any]) -> None:
        await self._start()
        line = orjson.dumps(event, option=orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_APPEND_NEWLINE)
        await self._send({"type": "http.response.body", "body": line, "more_body": True})

    async def end(self) -> None:
        await self._start()
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _start(self) -> None:
        if not self.started:
            self.started = True
            start = {"type": "http.response.start", "status": 200, "headers": self._headers}
            await self._send(start)
