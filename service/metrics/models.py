"""The served models, and the drift of their attention in sampled texts of live traffic."""

from __future__ import annotations

from collections.abc import Iterable

from engine.scheduling.observer import EngineObserver
from engine.types import ModelInfo
from service.metrics.catalogue import Catalogue

_DRIFT = {
    "entropy": ("attention_entropy", "nats", tuple(step / 2 for step in range(1, 25))),
    "spectral_gap": (
        "attention_spectral_gap",
        "1 minus the absolute second eigenvalue",
        (0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9),
    ),
    "temperature": (
        "attention_temperature",
        "1 / standard deviation of a row's scores",
        tuple(2.0 ** (power / 2) for power in range(-10, 11)),
    ),
}


class ModelMetrics(EngineObserver):
    def __init__(self, catalogue: Catalogue) -> None:
        self._model = catalogue.gauge(
            "model_info",
            "1 for each served model.",
            ("model", "family", "attention", "dim", "max_tokens", "revision", "device", "dtype"),
        )
        self._layers = {
            instrument: catalogue.histogram(
                name,
                f"Mean {instrument.replace('_', ' ')} of a layer's heads ({meaning}), for each "
                "sampled text of live traffic.",
                buckets,
                ("model", "layer"),
            )
            for instrument, (name, meaning, buckets) in _DRIFT.items()
        }

    def start_models(self, models: Iterable[ModelInfo]) -> None:
        """Creates the series of the served models before their first request."""
        for info in models:
            self._start_layers(info)
            self._model.labels(
                info.name,
                info.family,
                "+".join(dict.fromkeys(info.attention)),
                info.dim,
                info.max_tokens,
                info.revision,
                info.device,
                info.dtype,
            ).set(1)

    def _start_layers(self, info: ModelInfo) -> None:
        for layer, kind in enumerate(info.attention):
            if kind != "sliding_window":  # no instrument supports it
                for drift in self._layers.values():
                    drift.labels(info.name, layer)

    def attention_sampled(self, *, model: str, layer: int, instrument: str, value: float) -> None:
        self._layers[instrument].labels(model, layer).observe(value)
