"""Declares metrics under our prefix in a registry of their own, and writes the page of all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
)
from prometheus_client.exposition import choose_encoder


class Exposition(NamedTuple):
    body: bytes
    content_type: str


class Catalogue:
    """The metrics of one server."""

    def __init__(self) -> None:
        # In the text format each _created series would look like another gauge.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        self.labels: dict[str, tuple[str, ...]] = {}
        """The labels of each of our metrics, including those without any series yet."""

    def counter(self, name: str, help_text: str, labels: Sequence[str] = ()) -> Counter:
        return Counter(self._named(name, labels), help_text, labels, registry=self.registry)

    def gauge(self, name: str, help_text: str, labels: Sequence[str] = ()) -> Gauge:
        return Gauge(self._named(name, labels), help_text, labels, registry=self.registry)

    def histogram(
        self, name: str, help_text: str, buckets: Sequence[float], labels: Sequence[str] = ()
    ) -> Histogram:
        return Histogram(
            self._named(name, labels), help_text, labels, buckets=buckets, registry=self.registry
        )

    def expose(self, accept: str = "") -> Exposition:
        """Returns the page for Prometheus, in the format of its Accept header."""
        try:
            encode, content_type = choose_encoder(accept)
        except (TypeError, ValueError):  # the header asks for a version that is not a number
            encode, content_type = choose_encoder("")
        return Exposition(encode(self.registry), content_type)

    def _named(self, name: str, labels: Sequence[str]) -> str:
        self.labels[f"lln_{name}"] = tuple(labels)
        return f"lln_{name}"
