"""Events as lines of JSON, for answers that come while the work goes on."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

import orjson
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from engine.errors import RequestCancelled
from service.errors import as_lln_error, error_fields
from service.http.media_types import NDJSON
from service.http.observe import RequestRecord
from service.slow_callers import takes_within

log = logging.getLogger(__name__)

SendLine: TypeAlias = Callable[[dict[str, Any]], Awaitable[None]]


class EventLines(Response):
    """Runs work that sends lines. A failure before the first line has the status of its kind; a
    later one is the last line: `{"event": "error", "error": {...}}`, which the caller has
    `timeout_s` to take."""

    def __init__(
        self,
        work: Callable[[SendLine], Awaitable[None]],
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
                log.exception("answer failed after it had begun")
            self._record.told = error
            async with takes_within(self._timeout_s):
                await lines.send({"event": "error", "error": error_fields(error)})
        async with takes_within(self._timeout_s):
            await lines.end()


class _Lines:
    def __init__(self, send: Send, headers: list[tuple[bytes, bytes]]) -> None:
        self._send = send
        self._headers = headers
        self.started = False

    async def send(self, document: dict[str, Any]) -> None:
        await self._start()
        line = orjson.dumps(document, option=orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_APPEND_NEWLINE)
        await self._send({"type": "http.response.body", "body": line, "more_body": True})

    async def end(self) -> None:
        await self._start()
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _start(self) -> None:
        if not self.started:
            self.started = True
            start = {"type": "http.response.start", "status": 200, "headers": self._headers}
            await self._send(start)
