"""What every call of the engine stands on: the models, the device thread and its books."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from time import perf_counter
from typing import TypeVar

from engine.config import EngineConfig
from engine.deadline import Deadline
from engine.errors import LLNError, ModelNotFound, shown
from engine.held import HeldBytes
from engine.maps.cache import ByteCache
from engine.model.embedding_model import EmbeddingModel
from engine.observer import CallKind, EngineObserver
from engine.orders import Delivered
from engine.plan import Planner
from engine.prepare import Prepared
from engine.runner import run_batch
from engine.scheduler import Scheduler
from engine.sweep import Sweep
from engine.thread import DeviceThread
from engine.types import EmbedOptions, Vector

DEFAULTS = EmbedOptions()
DEFAULT_CONFIG = EngineConfig()
NO_DEADLINE = Deadline(None)
Item = TypeVar("Item")


class EngineCore:
    """Several models behind one device thread."""

    def __init__(
        self,
        models: Sequence[EmbeddingModel],
        *,
        config: EngineConfig = DEFAULT_CONFIG,
        observer: EngineObserver | None = None,
    ) -> None:
        assert models, "an engine serves at least one model"
        self.config = config
        self._observer = observer or EngineObserver()
        self._models = {model.name: model for model in models}
        self._default = models[0]
        self._open = ByteCache(max_bytes=config.max_open_bytes, max_idle_s=config.max_open_idle_s)
        self._planner = Planner(config, models[0].encoder.device)
        self._diagnosed = HeldBytes(self._planner.max_bytes)
        self._thread = DeviceThread[Prepared, Vector](
            run=self._run,
            sweep=self._sweep,
            scheduler=_scheduler(models, config, self._planner.max_bytes),
            observer=self._observer,
        )

    def _model(self, name: str | None) -> EmbeddingModel:
        if name is None:
            return self._default
        if name not in self._models:
            served = ", ".join(self._models)
            raise ModelNotFound(
                f"model {shown(name)!r} is not served here; served are {served}",
                param="model",
                limit=served,
                actual=name,
            )
        return self._models[name]

    async def _read(
        self, texts_to_tokens: Callable[[], list[Prepared]], deadline: Deadline = NO_DEADLINE
    ) -> list[Prepared]:
        """Runs the tokenizer off the loop."""
        started_at = perf_counter()
        with self._counting_rejections():
            async with deadline.over():
                texts = await asyncio.to_thread(texts_to_tokens)
        self._observer.tokenised(
            texts=len(texts),
            tokens=sum(text.num_tokens for text in texts),
            seconds=perf_counter() - started_at,
        )
        return texts

    async def _in_turns(
        self,
        steps: Iterator[Item],
        kind: CallKind,
        model: EmbeddingModel,
        tokens: int,
        *,
        goes_on: bool = False,
    ) -> AsyncIterator[Delivered[Item]]:
        """Each step of exclusive work as a call of its own, so that texts run in between. Of work
        that the device thread knows to go on, only the first can be refused."""
        follows = False
        while True:
            step = await self._thread.call(
                partial(next, steps, None),
                kind=kind,
                model=model.name,
                tokens=tokens,
                follows=follows,
            )
            if step.value is None:
                return
            follows = goes_on
            yield Delivered(step.value, step.queue_s, step.compute_s)

    async def _all_turns(
        self,
        steps: Iterator[Item],
        model: EmbeddingModel,
        tokens: int,
        deadline: Deadline,
        *,
        num_bytes: int,
    ) -> list[Delivered[Item]]:
        """All that these steps of a diagnosis bring, if they do so in time. They begin when the
        bytes that they hold fit beside those of the others."""
        with self._counting_rejections():
            self._planner.admit_diagnosis(tokens, num_bytes)
        async with deadline.over(), self._diagnosed.hold(num_bytes):
            with self._thread.going_on():
                turns = self._in_turns(steps, "diagnosis", model, tokens, goes_on=True)
                return [turn async for turn in turns]

    def _run(self, name: str, texts: Sequence[Prepared]) -> list[Vector]:
        model, started_at = self._models[name], perf_counter()
        vectors = run_batch(model, texts)
        lengths = [text.num_embedded for text in texts]
        self._planner.ran_batch(model, lengths, perf_counter() - started_at)
        return vectors

    def _sweep(self, name: str, text: Prepared) -> Sweep:
        model = self._models[name]
        return Sweep(
            model,
            text,
            keep_projections=self._planner.keeps_projections(model, text.num_embedded),
            on_out_of_memory=self._observer.recovered_from_oom,
        )

    @contextmanager
    def _counting_rejections(self) -> Iterator[None]:
        """For checks made before the device thread's door, which counts its own refusals."""
        try:
            yield
        except LLNError as error:
            self._observer.rejected(reason=error.code)
            raise


def _scheduler(
    models: Sequence[EmbeddingModel], config: EngineConfig, max_sweep_bytes: int
) -> Scheduler:
    return Scheduler(
        max_batch_tokens=config.batch_tokens_on(models[0].encoder.device.type),
        max_batch_sequences=config.max_batch_sequences,
        max_queue_tokens=config.max_queue_tokens,
        max_sweep_bytes=max_sweep_bytes,
        long_share=config.long_percent / 100,
    )
