"""Drift: what a few live texts do in every layer, read off the hot path and within a budget."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import TypeAlias

from engine.config import EngineConfig
from engine.diagnose import LayerReadings, readings_in_slices
from engine.diagnosis_plan import DiagnosisPlan, plan_diagnosis
from engine.errors import LLNError
from engine.model.embedding_model import EmbeddingModel
from engine.observer import CallKind, EngineObserver
from engine.orders import Delivered
from engine.prepare import Prepared

logger = logging.getLogger(__name__)

InTurns: TypeAlias = Callable[
    [Iterator[Sequence[LayerReadings]], CallKind, EmbeddingModel, int],
    AsyncIterator[Delivered[Sequence[LayerReadings]]],
]

INSTRUMENTS = ("entropy", "temperature", "spectral_gap")
_FIRST_ALLOWANCE_S = 1.0
"""So that the first sample need not wait until the share of a young process has grown."""


class DriftSampler:
    """Chooses texts at random, one at a time, while the device's time for it lasts."""

    def __init__(self, config: EngineConfig, *, seed: int | None = None) -> None:
        self._config = config
        self._random = random.Random(seed)
        self._began_at = time.monotonic()
        self._spent_s = 0.0
        self._is_busy = False

    def choose(self, texts: Sequence[Prepared]) -> Prepared | None:
        """One of these to read, if any; whoever takes it says when it is `done`."""
        rate = self._config.drift_rate
        if rate == 0 or self._is_busy or self._is_spent:
            return None
        for text in texts:
            fits = text.num_embedded <= self._config.drift_max_tokens
            if fits and self._random.random() < rate:
                self._is_busy = True
                return text
        return None

    def spend(self, seconds: float) -> None:
        self._spent_s += seconds

    def done(self) -> None:
        self._is_busy = False

    @property
    def _is_spent(self) -> bool:
        elapsed_s = time.monotonic() - self._began_at
        return self._spent_s > _FIRST_ALLOWANCE_S + self._config.drift_max_share * elapsed_s


class DriftReader:
    """Reads the chosen texts in tasks of its own, which nobody waits for."""

    def __init__(self, config: EngineConfig, in_turns: InTurns, observer: EngineObserver) -> None:
        self._sampler = DriftSampler(config)
        self._in_turns = in_turns
        self._observer = observer
        self._tasks: set[asyncio.Task[None]] = set()

    def sample(self, model: EmbeddingModel, texts: Sequence[Prepared]) -> None:
        """Read one of these texts later, if its turn has come."""
        text = self._sampler.choose(texts)
        if text is not None:
            task = asyncio.create_task(self._read(model, text))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def stop(self) -> None:
        for task in self._tasks:
            task.cancel()

    async def _read(self, model: EmbeddingModel, text: Prepared) -> None:
        plan = drift_plan(model)
        try:
            if plan is None:
                return
            layers: list[LayerReadings] = []
            steps = readings_in_slices(model, text, plan)
            async for step in self._in_turns(steps, "drift", model, text.num_embedded):
                layers += step.value
                self._sampler.spend(step.compute_s)
            tell_drift(self._observer, model.name, plan, layers)
        except LLNError as error:
            logger.info("a sample for drift was given up: %s", error)
        finally:
            self._sampler.done()


def drift_plan(model: EmbeddingModel) -> DiagnosisPlan | None:
    """All that can be read of a model; None if that is nothing."""
    if all(kind == "sliding_window" for kind in model.info.attention):
        return None
    return plan_diagnosis(model, None, None, INSTRUMENTS, "auto")


def tell_drift(
    observer: EngineObserver, model: str, plan: DiagnosisPlan, layers: Sequence[LayerReadings]
) -> None:
    for layer, found in zip(plan.layers, layers, strict=True):
        for instrument, value in _means(found):
            observer.attention_sampled(model=model, layer=layer, instrument=instrument, value=value)


def _means(layer: LayerReadings) -> Iterator[tuple[str, float]]:
    for name, timed in layer.readings.items():
        yield name, float(timed.reading.values.mean())
