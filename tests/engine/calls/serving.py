"""An engine that serves one test, and an observer that counts what it is told."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from engine.async_engine import AsyncEngine
from engine.config import EngineConfig
from engine.model.embedding_model import EmbeddingModel
from engine.scheduling.observer import EngineObserver

Result = TypeVar("Result")


class Tally(EngineObserver):
    def __init__(self) -> None:
        self.rejections: list[str] = []
        self.num_accepted = 0
        self.num_tokenised = 0

    def rejected(self, *, reason: str) -> None:
        self.rejections.append(reason)

    def accepted(self, *, model: str, tokens: int) -> None:
        self.num_accepted += 1

    def tokenised(self, *, texts: int, tokens: int, seconds: float) -> None:
        self.num_tokenised += texts


def serve(
    models: dict[str, EmbeddingModel],
    work: Callable[[AsyncEngine], Awaitable[Result]],
    *,
    config: EngineConfig | None = None,
    observer: EngineObserver | None = None,
) -> Result:
    async def run() -> Result:
        engine = AsyncEngine(
            list(models.values()), config=config or EngineConfig(device="cpu"), observer=observer
        )
        async with engine:
            return await work(engine)

    return asyncio.run(run())
