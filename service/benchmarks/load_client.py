"""A minimal HTTP client for putting load on a server.

The server may have the same cores, so the client does only what it must.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping
from typing import NamedTuple, TypeAlias

from service.addresses import Target, in_url

_Connection: TypeAlias = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class HttpAnswer(NamedTuple):
    status: int
    headers: Mapping[str, str]  # names in lower case
    body: bytes


class HttpClient:
    """Reuses connections, one for each request in progress."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._ssl = target.ssl_context
        self._idle: deque[_Connection] = deque()
        self._head = "".join(
            f"{name}: {value}\r\n"
            for name, value in {
                "host": f"{in_url(target.host)}:{target.port}",
                "content-type": "application/json",
                **target.headers,
            }.items()
        )

    async def post(self, path: str, body: bytes) -> HttpAnswer:
        """Sends one request and returns its answer."""
        reader, writer = self._idle.pop() if self._idle else await self._connect()
        head = f"POST {path} HTTP/1.1\r\n{self._head}content-length: {len(body)}\r\n\r\n"
        try:
            writer.write(head.encode("latin-1") + body)
            answer = await read_answer(reader)
        except BaseException:
            writer.close()
            raise
        if answer.headers.get("connection", "").lower() == "close":
            writer.close()
        else:
            self._idle.append((reader, writer))
        return answer

    def close(self) -> None:
        for _, writer in self._idle:
            writer.close()
        self._idle.clear()

    async def _connect(self) -> _Connection:
        return await asyncio.open_connection(self._target.host, self._target.port, ssl=self._ssl)


async def read_answer(reader: asyncio.StreamReader) -> HttpAnswer:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    status_line, *lines = head.strip().split("\r\n")
    named = (line.split(":", 1) for line in lines)
    headers = {name.strip().lower(): value.strip() for name, value in named}
    if headers.get("transfer-encoding", "").lower() == "chunked":
        body = await _read_chunks(reader)
    else:
        body = await reader.readexactly(int(headers.get("content-length", "0")))
    return HttpAnswer(int(status_line.split(" ", 2)[1]), headers, body)


async def _read_chunks(reader: asyncio.StreamReader) -> bytes:
    body = b""
    while size := int((await reader.readline()).split(b";")[0], 16):
        body += (await reader.readexactly(size + 2))[:-2]
    await reader.readline()
    return body
