"""The HTTP client of the load generator."""

from __future__ import annotations

import asyncio
import socket

import pytest

from service.addresses import Target
from service.benchmarks.load_client import HttpClient


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")
def test_an_ipv6_host_has_brackets() -> None:
    """Without them the server refuses the request."""

    async def head_sent() -> bytes:
        heads: asyncio.Queue[bytes] = asyncio.Queue()

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            heads.put_nowait(await reader.readuntil(b"\r\n\r\n"))
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
            writer.close()

        async with await asyncio.start_server(answer, "::1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            await HttpClient(Target(host="::1", port=port)).post("/v1/embeddings", b"{}")
        return (await heads.get()).replace(b":%d" % port, b":PORT")

    assert b"\r\nhost: [::1]:PORT\r\n" in asyncio.run(head_sent())
