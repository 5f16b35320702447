"""One connection over HTTP: whose parser reads it, and how it is broken off."""

from __future__ import annotations

import asyncio

from starlette.types import Scope
from uvicorn.protocols.http.h11_impl import H11Protocol

MAX_HEAD_BYTES = 65_536
"""Of a request line with its headers, as far as they can be read before they end."""

_ABORT = "abort_connection"


class Connection(H11Protocol):
    """uvicorn's, on h11. The parser that it would choose, httptools, drops the bodies of those who
    offer another protocol (`Upgrade: h2c`), and sets no limit to headers and pipelined requests."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        # Copied into the state of each request of this connection.
        self.app_state = {**self.app_state, _ABORT: transport.abort}


async def abort_connection(scope: Scope) -> None:
    """Drops what its caller has not taken; closing would wait for that, for ever."""
    if abort := scope.get("state", {}).get(_ABORT):
        abort()
        await asyncio.sleep(0)  # in which uvicorn hears of it: else it logs an answer cut short
