"""The engine for servers: many callers, several models, one device thread."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Self

from engine.attention_calls import AttentionCalls
from engine.checkpoint.published import DEFAULT_MODEL
from engine.config import EngineConfig
from engine.core import DEFAULT_CONFIG, Item
from engine.deadline import Deadline
from engine.model.embedding_model import EmbeddingModel, load_models
from engine.observer import EngineObserver
from engine.price import price_of
from engine.text_calls import TextCalls
from engine.types import ModelInfo

_CANARY = "A short text, to see that the model answers."


class AsyncEngine(TextCalls, AttentionCalls):
    """Several models behind one device thread: its life, and measuring the machine it runs on."""

    _canary_ran = False
    _stopped = False

    @classmethod
    def load(
        cls,
        names: Sequence[str] = (DEFAULT_MODEL,),
        *,
        config: EngineConfig = DEFAULT_CONFIG,
        observer: EngineObserver | None = None,
    ) -> Self:
        """Read the weights of these models; nothing runs before the engine is entered."""
        return cls(load_models(names, config=config), config=config, observer=observer)

    async def __aenter__(self) -> Self:
        await self._thread.start()
        try:
            for name, model in self._models.items():
                await self._thread.call(price_of, model.encoder, kind="calibration", model=name)
                await self.embed([_CANARY], model=name)
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
        """Finish accepted work by the deadline; what is left then is answered with its failure.
        The first stop counts: leaving the engine is one, too."""
        if not self._stopped:
            self._stopped = True
            self._drift.stop()
            await self._thread.stop(drain)

    @property
    def ready(self) -> bool:
        """Whether every model has answered, and the device thread lives, takes work and gets on
        with it."""
        thread = self._thread
        return self._canary_ran and thread.alive and thread.accepting and not self.stuck

    @property
    def stuck(self) -> bool:
        """Whether the device has been at one unit of work for longer than any should take."""
        return self._thread.busy_s > self.config.stuck_after_s

    @property
    def models(self) -> Mapping[str, ModelInfo]:
        return {name: model.info for name, model in self._models.items()}

    def resolve(self, name: str | None) -> ModelInfo:
        return self._model(name).info

    async def measure(
        self,
        plan: Callable[[EmbeddingModel], Iterator[Sequence[Item]]],
        *,
        model: str | None = None,
    ) -> AsyncIterator[Item]:
        """The rows of a benchmark as they come. Other work runs in between its steps."""
        with self._counting_rejections():
            chosen = self._model(model)
            steps = plan(chosen)
        async for step in self._in_turns(steps, "benchmark", chosen, 0):
            for row in step.value:
                yield row
