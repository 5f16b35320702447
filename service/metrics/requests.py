"""Requests over both protocols: how many, how they ended, and how long they took."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Literal, TypeAlias

from service.metrics.buckets import SECONDS
from service.metrics.catalogue import Catalogue
from service.tracing import Tracing

Protocol: TypeAlias = Literal["http", "grpc"]

OK = "ok"
"""The `code` of a request that did not fail."""

UNMATCHED = "unmatched"
"""The `method` of a request for an unknown route or RPC."""


class RequestMetrics:
    def __init__(self, catalogue: Catalogue, tracing: Tracing) -> None:
        self.tracing = tracing
        self._requests = catalogue.counter(
            "requests", "Answered requests, by outcome.", ("protocol", "method", "code")
        )
        self._request_seconds = catalogue.histogram(
            "request_seconds",
            "Time from the arrival of a request to its answer.",
            SECONDS,
            ("protocol", "method"),
        )
        self._in_progress = catalogue.gauge(
            "requests_in_progress",
            "Requests in progress, except those for /metrics itself.",
            ("protocol",),
        )
        for protocol in ("http", "grpc"):
            self._in_progress.labels(protocol)
        self._ready = catalogue.gauge(
            "ready", "1 while the server accepts work and its models respond, else 0."
        )

    def start_methods(self, protocol: Protocol, methods: Iterable[str]) -> None:
        """Creates the series of a protocol's methods before their first request."""
        for method in methods:
            self._requests.labels(protocol, method, OK)
            self._request_seconds.labels(protocol, method)

    def start_readiness(self, is_ready: Callable[[], bool]) -> None:
        self._ready.set_function(is_ready)

    def in_progress(self, protocol: Protocol) -> AbstractContextManager[None]:
        """Counts a request as in progress while the context is open."""
        return self._in_progress.labels(protocol).track_inprogress()

    def request_finished(
        self, *, protocol: Protocol, method: str, code: str, seconds: float
    ) -> None:
        """Records an answered request by its route or RPC and its error code, or OK."""
        exemplar = self.tracing.exemplar()
        self._requests.labels(protocol, method, code).inc(1, exemplar)
        self._request_seconds.labels(protocol, method).observe(seconds, exemplar)
