"""The routes of files and batches in this process, with all that a request passes, and no model."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx

from service.app import create_app
from service.batches.runner import Batches
from service.environment import load_settings


@asynccontextmanager
async def client_of(batches: Batches) -> AsyncIterator[httpx.AsyncClient]:
    app = create_app(load_settings())
    app.state.batches = batches
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://lln") as client:
        yield client
