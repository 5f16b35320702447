"""The engine for servers: many callers, several models, one device worker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Self, TypeVar

from engine.analysis.drift import DriftReader
from engine.calls.analysis_calls import AnalysisCalls
from engine.calls.chunk_calls import ChunkCalls
from engine.calls.core import DEFAULT_CONFIG
from engine.calls.document_lists import DocumentListCalls
from engine.calls.embedding_calls import EmbeddingCalls
from engine.calls.living_calls import LivingCalls
from engine.calls.ranking_calls import RankingCalls
from engine.calls.token_calls import TokenCalls
from engine.checkpoint.registry import DEFAULT_MODEL
from engine.config import EngineConfig
from engine.execution.cost_model import price_of
from engine.execution.inputs import PreparedText, canary_options
from engine.model.embedding_model import EmbeddingModel, load_models
from engine.model.quantized import range_for
from engine.ranks.launcher import RankLauncher
from engine.scheduling.deadline import Deadline
from engine.scheduling.observer import EngineObserver
from engine.scheduling.request import CallKind
from engine.types import ModelInfo, Outstanding, Ranks

Item = TypeVar("Item")

_CANARY = "A short text, to see that the model answers."


class AsyncEngine(
    EmbeddingCalls,
    DocumentListCalls,
    ChunkCalls,
    RankingCalls,
    LivingCalls,
    AnalysisCalls,
    TokenCalls,
):
    """Several models behind one device worker. Use it as an asynchronous context manager."""

    def __init__(
        self,
        models: Sequence[EmbeddingModel],
        *,
        config: EngineConfig = DEFAULT_CONFIG,
        observer: EngineObserver | None = None,
        aliases: Mapping[str, str] | None = None,
        launcher: RankLauncher | None = None,
    ) -> None:
        super().__init__(
            models, config=config, observer=observer, aliases=aliases, launcher=launcher
        )
        self._drift = DriftReader(config, self._worker, self._observer)
        self._canary_ran = False
        self._stopped = False

    @classmethod
    def load(
        cls,
        names: Sequence[str] = (DEFAULT_MODEL,),
        *,
        config: EngineConfig = DEFAULT_CONFIG,
        observer: EngineObserver | None = None,
        aliases: Mapping[str, str] | None = None,
        launcher: RankLauncher | None = None,
    ) -> Self:
        """Load the weights of these models. Nothing runs before the engine is entered."""
        models = load_models(names, config=config)
        return cls(models, config=config, observer=observer, aliases=aliases, launcher=launcher)

    async def __aenter__(self) -> Self:
        await self._worker.start()
        try:
            if self._fleet is not None:
                await asyncio.to_thread(self._fleet.start)
            for name, model in self._models.items():
                await self._worker.call(price_of, model.encoder, kind="calibration", model=name)
                options = canary_options(model, self.config)
                [canary] = await self.embed([_CANARY], model=name, options=options)
                self._infos[name] = replace(self._infos[name], int8_range=range_for(canary.vector))
        except BaseException:
            await self.stop(Deadline(0))
            raise
        self._canary_ran = True
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.stop(Deadline(self.config.drain_timeout_s))

    async def stop(self, drain: Deadline) -> None:
        """Finish accepted work by the deadline; what is left then fails. Only the first stop
        counts, and leaving the context is one too."""
        if not self._stopped:
            self._stopped = True
            self._drift.stop()
            await self._worker.stop(drain)
            if self._fleet is not None:
                await asyncio.to_thread(self._fleet.stop)
            # Accepted calls read their later texts while the worker drains.
            self._pool.close()

    @property
    def ready(self) -> bool:
        """Whether every model has answered, and the device worker lives, accepts work and makes
        progress."""
        worker = self._worker
        return self._canary_ran and worker.alive and worker.accepting and not self.stuck

    @property
    def stuck(self) -> bool:
        """Whether the device has been running one unit for longer than any should take."""
        return self._worker.busy_s > self.config.stuck_after_s

    @property
    def outstanding(self) -> Outstanding:
        """The tokens of accepted work that the device has still to read."""
        return self._worker.outstanding

    @property
    def ranks(self) -> Ranks:
        """The processes that read one long document together."""
        if self._fleet is None:
            return Ranks(asked=1, present=1)
        return Ranks(asked=self._fleet.num_ranks, present=self._fleet.num_present)

    @property
    def models(self) -> Mapping[str, ModelInfo]:
        return dict(self._infos)

    def resolve(self, name: str | None) -> ModelInfo:
        with self._counting_rejections():
            return self._infos[self._model(name).name]

    def _on_embedded(self, model: EmbeddingModel, texts: Sequence[PreparedText]) -> None:
        self._drift.sample(model, texts)

    async def measure(
        self,
        plan: Callable[[EmbeddingModel], Iterator[Sequence[Item]]],
        *,
        model: str | None = None,
        kind: CallKind = "benchmark",
        tokens: int = 0,
    ) -> AsyncIterator[Item]:
        """Run what `plan` makes of a model on the device worker, and yield its rows as they come.

        Other work runs between two steps. A step may bring no row, one or several.
        """
        with self._counting_rejections():
            chosen = self._model(model)
            steps = plan(chosen)
        while True:
            step = await self._worker.call(
                partial(next, steps, None), kind=kind, model=chosen.name, tokens=tokens
            )
            if step.value is None:
                return
            for row in step.value:
                yield row
