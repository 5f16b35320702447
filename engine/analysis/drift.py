"""Drift: attention of a few live texts, read in the background within a budget of device time."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Iterator, Sequence

from engine.analysis.diagnosis import LayerReadings, read_in_slices
from engine.analysis.diagnosis_plan import DiagnosisPlan, plan_diagnosis
from engine.config import EngineConfig
from engine.errors import LLNError
from engine.execution.inputs import PreparedText
from engine.model.embedding_model import EmbeddingModel
from engine.scheduling.observer import EngineObserver
from engine.scheduling.session import Submitter
from engine.types import Vector

logger = logging.getLogger(__name__)


INSTRUMENTS = ("entropy", "temperature", "spectral_gap")
_FIRST_ALLOWANCE_S = 1.0
"""The budget of a young process: its share of the time would allow no sample yet."""


class DriftSampler:
    """Chooses texts at random, one at a time, within the budget of device time."""

    def __init__(self, config: EngineConfig, *, seed: int | None = None) -> None:
        self._config = config
        self._random = random.Random(seed)
        self._began_at = time.monotonic()
        self._spent_s = 0.0
        self._is_busy = False

    def choose(self, texts: Sequence[PreparedText]) -> PreparedText | None:
        """One of these texts, or None. Call `done` when the chosen text has been read."""
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
    """Reads the chosen texts in background tasks."""

    def __init__(
        self,
        config: EngineConfig,
        worker: Submitter[PreparedText, Vector],
        observer: EngineObserver,
    ) -> None:
        self._sampler = DriftSampler(config)
        self._worker = worker
        self._observer = observer
        self._tasks: set[asyncio.Task[None]] = set()

    def sample(self, model: EmbeddingModel, texts: Sequence[PreparedText]) -> None:
        """Start reading one of these texts, if the sampler chooses one."""
        text = self._sampler.choose(texts)
        if text is not None:
            task = asyncio.create_task(self._read(model, text))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def stop(self) -> None:
        for task in self._tasks:
            task.cancel()

    async def _read(self, model: EmbeddingModel, text: PreparedText) -> None:
        plan = drift_plan(model)
        try:
            if plan is None:
                return
            result = await self._worker.run_steps(
                read_in_slices(model, text, plan),
                kind="drift",
                model=model.name,
                tokens=text.num_embedded,
                on_step=self._sampler.spend,
            )
            report_drift(self._observer, model.name, plan, result.value)
        except LLNError as error:
            logger.info("A drift sample was abandoned: %s", error)
        finally:
            self._sampler.done()


def drift_plan(model: EmbeddingModel) -> DiagnosisPlan | None:
    """What can be read of a model; None if no layer can be read."""
    if all(kind == "sliding_window" for kind in model.info.attention):
        return None
    return plan_diagnosis(model, None, None, INSTRUMENTS, "auto")


def report_drift(
    observer: EngineObserver, model: str, plan: DiagnosisPlan, layers: Sequence[LayerReadings]
) -> None:
    for layer, found in zip(plan.layers, layers, strict=True):
        for instrument, value in _means(found):
            observer.attention_sampled(model=model, layer=layer, instrument=instrument, value=value)


def _means(layer: LayerReadings) -> Iterator[tuple[str, float]]:
    for name, timed in layer.readings.items():
        yield name, float(timed.reading.values.mean())
