"""What Serve's HTTP proxy does besides: errors of ours where Serve would send none.

Serve breaks the connection, or answers without a body, when a replica dies. Here the caller gets
the same JSON as for every other error. A short request that changes nothing goes to another replica
once instead, if its answer has not begun.

RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH=service.replicas.proxy:middlewares
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence

from starlette.middleware import Middleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from engine.errors import DeadlineExceeded, LLNError
from service.errors import error_fields, row_for
from service.replicas.errors import ReplicaLost, stopping
from service.replicas.ledger import LONG_FROM
from service.replicas.price import price_of_scope

CALLBACK = "RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH"
CALLBACK_PATH = "service.replicas.proxy:middlewares"

_CHANGE_THINGS = ("/v1/benchmarks", "/v1/claims", "/v1/batches", "/v1/files")
"""They start what another replica must not start a second time."""

_SERVES_OWN = {408: DeadlineExceeded("Serve's deadline for the request passed", code="timeout")}

_NO_APPLICATION = b"Path '"
"""How Serve's own 404 begins. Other applications may have pages that are not found."""

log = logging.getLogger(__name__)


def middlewares() -> list[Middleware]:
    return [Middleware(ReplicaErrors)]


class ReplicaErrors:
    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        answer = _Answer(send)
        body = _Body(receive) if _may_repeat(scope) else None
        for attempt in range(2 if body else 1):
            try:
                await self._app(dict(scope), body.from_start() if body else receive, answer.send)
            except Exception:
                if answer.has_begun:
                    raise
                log.exception("the proxy failed")
            if answer.has_begun:
                return
            if body is not None and not body.can_repeat:
                break
            log.warning("a replica was lost before it answered (attempt %d)", attempt + 1)
        await _send_error(
            ReplicaLost("the replica that read this request ended before it had answered"), send
        )


class _Answer:
    """Passes the answer on, and says whether it has begun."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.has_begun = False
        self._replaced = False
        self._not_found: Message | None = None  # until its body says whose it is

    async def send(self, message: Message) -> None:
        self.has_begun = True
        if message["type"] == "http.response.start" and not _is_json(message["headers"]):
            if message["status"] == 404:
                self._not_found = message
                return
            await self._replace(_SERVES_OWN.get(message["status"]))
        elif self._not_found is not None:
            start, self._not_found = self._not_found, None
            if message.get("body", b"").startswith(_NO_APPLICATION):
                await self._replace(stopping())
            else:
                await self._send(start)
        if not self._replaced:
            await self._send(message)

    async def _replace(self, error: LLNError | None) -> None:
        if error is not None:
            self._replaced = True
            await _send_error(error, self._send)


class _Body:
    """A request's body, kept so that it can be sent again."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._kept: list[Message] = []
        self._has_left = False

    @property
    def can_repeat(self) -> bool:
        return not self._has_left

    def from_start(self) -> Receive:
        position = 0

        async def receive() -> Message:
            nonlocal position
            if position == len(self._kept):
                message = await self._receive()
                self._has_left = self._has_left or message["type"] == "http.disconnect"
                self._kept.append(message)
            position += 1
            return self._kept[position - 1]

        return receive


def _may_repeat(scope: Scope) -> bool:
    price = price_of_scope(scope)
    return (
        price.tokens < LONG_FROM
        and not price.is_call
        and not scope.get("path", "").startswith(_CHANGE_THINGS)
    )


def _is_json(headers: Sequence[tuple[bytes, bytes]]) -> bool:
    return any(name.lower() == b"content-type" and b"json" in value for name, value in headers)


async def _send_error(error: LLNError, send: Send) -> None:
    body = json.dumps({"error": error_fields(error)}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    await send(
        {"type": "http.response.start", "status": row_for(error).http_status, "headers": headers}
    )
    await send({"type": "http.response.body", "body": body})
