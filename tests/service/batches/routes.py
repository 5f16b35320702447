"""The routes of files and batches in this process, with all that a request passes, and no model."""

from __future__ import annotations

import asyncio
import time
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


class LoopWatch:
    """How long the event loop was held up at most, while the context is open."""

    def __init__(self) -> None:
        self.longest_s = 0.0

    async def __aenter__(self) -> LoopWatch:
        self._task = asyncio.create_task(self._watch())
        await asyncio.sleep(0)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()

    async def _watch(self) -> None:
        while True:
            before = time.perf_counter()
            await asyncio.sleep(0.001)
            self.longest_s = max(self.longest_s, time.perf_counter() - before)
