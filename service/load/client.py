"""A small HTTP client: what a load generator spends on itself, a server on the same cores lacks."""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

_Connection: TypeAlias = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@dataclass(frozen=True, kw_only=True)
class Target:
    """Where a server listens, and the headers that it lets a client in with."""

    host: str
    port: int
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    tls: bool = False
    needs_certificate: bool = False
    """Whether only clients that show a certificate are let in, which this one cannot."""

    @property
    def ssl_context(self) -> ssl.SSLContext | None:
        """Of a server on this very machine the name is no proof of anything: it is not checked."""
        return ssl._create_unverified_context() if self.tls else None


class HttpAnswer(NamedTuple):
    status: int
    headers: Mapping[str, str]  # names in lower case
    body: bytes


class HttpClient:
    """Connections that are kept, one for each request that is under way."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._ssl = target.ssl_context
        self._idle: deque[_Connection] = deque()
        self._head = "".join(
            f"{name}: {value}\r\n"
            for name, value in {
                "host": f"{target.host}:{target.port}",
                "content-type": "application/json",
                **target.headers,
            }.items()
        )

    async def post(self, path: str, body: bytes) -> HttpAnswer:
        """One request, on a connection of its own until it is answered."""
        reader, writer = self._idle.pop() if self._idle else await self._connect()
        head = f"POST {path} HTTP/1.1\r\n{self._head}content-length: {len(body)}\r\n\r\n"
        try:
            writer.write(head.encode("latin-1") + body)
            answer = await _read_answer(reader)
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


async def _read_answer(reader: asyncio.StreamReader) -> HttpAnswer:
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
