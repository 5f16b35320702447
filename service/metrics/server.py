"""All metrics of one server. The engine's observer and both protocols record here."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import GCCollector, PlatformCollector, ProcessCollector

from engine.types import ModelInfo
from service.metrics.batch_api import BatchApiMetrics
from service.metrics.benchmarks import BenchmarkMetrics
from service.metrics.catalogue import Catalogue, Exposition
from service.metrics.device import DeviceMetrics
from service.metrics.memory import add_device_memory
from service.metrics.models import ModelMetrics
from service.metrics.requests import RequestMetrics
from service.metrics.spare_descriptor import SpareDescriptor
from service.metrics.texts import TextMetrics
from service.tracing import Tracing


class Metrics(RequestMetrics, TextMetrics, DeviceMetrics, ModelMetrics):
    def __init__(self, tracing: Tracing | None = None) -> None:
        tracing = tracing or Tracing()
        self._catalogue = catalogue = Catalogue()
        RequestMetrics.__init__(self, catalogue, tracing)
        TextMetrics.__init__(self, catalogue, tracing)
        DeviceMetrics.__init__(self, catalogue)
        ModelMetrics.__init__(self, catalogue)
        add_device_memory(catalogue)
        self.benchmarks = BenchmarkMetrics(catalogue)
        self.batch_api = BatchApiMetrics(catalogue)
        self.registry = catalogue.registry
        self.labels = catalogue.labels
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        GCCollector(registry=self.registry)
        self._spare = SpareDescriptor()

    def start_models(self, models: Iterable[ModelInfo]) -> None:
        """Creates the series of the served models before their first request."""
        served = list(models)
        self.start_texts(info.name for info in served)
        super().start_models(served)

    def expose(self, accept: str = "") -> Exposition:
        """Returns the page for Prometheus, in the format of its Accept header."""
        with self._spare.given_up():
            return self._catalogue.expose(accept)
