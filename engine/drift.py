"""Drift: what a few live texts do in every layer, read off the hot path and within a budget."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence

from engine.config import EngineConfig
from engine.diagnose import LayerReadings
from engine.diagnosis_plan import DiagnosisPlan, plan_diagnosis
from engine.model.embedding_model import EmbeddingModel
from engine.observer import EngineObserver
from engine.prepare import Prepared

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
