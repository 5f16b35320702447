"""An engine that serves for the length of one test."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

from engine.async_engine import AsyncEngine
from engine.config import EngineConfig
from engine.model.embedding_model import EmbeddingModel
from engine.scheduling.observer import EngineObserver

Result = TypeVar("Result")


def serve(
    models: Iterable[EmbeddingModel],
    work: Callable[[AsyncEngine], Awaitable[Result]],
    *,
    config: EngineConfig | None = None,
    observer: EngineObserver | None = None,
) -> Result:
    async def run() -> Result:
        engine = AsyncEngine(
            list(models), config=config or EngineConfig(device="cpu"), observer=observer
        )
        async with engine:
            return await work(engine)

    return asyncio.run(run())
