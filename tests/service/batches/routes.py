"""The routes of files and batches in this process, with all that a request passes, and no model."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace

import httpx

from service.app import create_app
from service.batches.runner import Batches
from service.environment import load_settings
from service.settings import Settings

HEAD = b'--b\r\ncontent-disposition: form-data; name="file"; filename="a"\r\n\r\n'
END = b'\r\n--b\r\ncontent-disposition: form-data; name="purpose"\r\n\r\nbatch\r\n--b--\r\n'
FORM = {"content-type": "multipart/form-data; boundary=b"}
"""A form whose file has the contents that come in between."""


@asynccontextmanager
async def client_of(
    batches: Batches, settings: Settings | None = None
) -> AsyncIterator[httpx.AsyncClient]:
    app = create_app(settings or load_settings())
    app.state.batches = SimpleNamespace(batches=batches)
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://lln") as client:
        yield client


async def in_pieces(*pieces: bytes) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece


async def upload(client: httpx.AsyncClient, *pieces: bytes) -> httpx.Response:
    return await client.post("/v1/files", content=in_pieces(HEAD, *pieces, END), headers=FORM)
