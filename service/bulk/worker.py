"""A worker of a job on Ray: an engine in a process of its own, which may be on another machine."""

from __future__ import annotations

import os
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from engine.config import EngineConfig
from engine.errors import LLNError
from engine.types import ModelInfo
from service.bulk.pieces import Piece, Stretch
from service.bulk.rows import RowOptions
from service.bulk.turns import Turns
from service.version import version_of

if TYPE_CHECKING:
    from engine.async_engine import AsyncEngine

_AT_ONCE = {"cpu": 1, "cuda": 4}
"""Stretches that a worker draws rows from. One alone leaves a GPU too little to do."""


@dataclass(frozen=True, kw_only=True)
class WorkerInfo:
    """What a worker has loaded, and where."""

    model: ModelInfo
    version: str
    host: str
    process: int

    @property
    def stretches_at_once(self) -> int:
        """How many stretches it embeds side by side. Those sent beyond them wait there."""
        return _AT_ONCE.get(self.model.device.partition(":")[0], 1)


class Worker:
    """Ray makes it an actor. Nothing is loaded before `start`, whose errors Ray passes on."""

    def __init__(self, model: str, config: EngineConfig) -> None:
        self._model = model
        self._config = config
        self._engine: AsyncEngine | None = None
        self._turns: Turns | None = None

    async def start(self) -> WorkerInfo:
        from engine.platform.process import prepare_process

        prepare_process()  # before torch is imported
        from engine.async_engine import AsyncEngine

        host = socket.gethostname()
        try:
            engine = AsyncEngine.load([self._model], config=self._config)
            self._engine = await engine.__aenter__()  # the process ends with the worker
        except LLNError as error:
            raise error.about(error.param, message=f"on {host}: {error.message}") from None
        info = WorkerInfo(
            model=engine.resolve(self._model),
            version=version_of("lln"),
            host=host,
            process=os.getpid(),
        )
        self._turns = Turns(info.stretches_at_once)
        return info

    async def embed(
        self, stretch: Stretch, how: RowOptions, piece_cost: int
    ) -> AsyncIterator[Piece]:
        from service.bulk.embed import OneEngine

        assert self._engine is not None, "it has been started"
        assert self._turns is not None, "it has been started"
        embedder = OneEngine(self._engine, self._model, piece_cost)
        async with self._turns.turn(stretch) as stretches:
            async for piece in embedder.embed(stretches, how):
                yield piece
