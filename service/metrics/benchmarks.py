"""Benchmark runs on this server, and what the last ones measured."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager

from service.metrics.buckets import length_class
from service.metrics.catalogue import Catalogue


class BenchmarkMetrics:
    def __init__(self, catalogue: Catalogue) -> None:
        self._runs = catalogue.counter(
            "benchmarks", "Finished benchmark runs, by final state.", ("suite", "state")
        )
        self._running = catalogue.gauge(
            "benchmarks_running", "Benchmark runs in progress.", ("suite",)
        )
        self._speed = catalogue.gauge(
            "benchmark_tokens_per_second",
            "Tokens per second in the last benchmark run, by attention and length class.",
            ("suite", "attention", "length"),
        )

    def start_suites(self, suites: Iterable[str]) -> None:
        """Creates the series of the suites before their first run."""
        for suite in suites:
            self._running.labels(suite)
            for state in ("done", "failed", "cancelled", "interrupted"):
                self._runs.labels(suite, state)

    def running(self, suite: str) -> AbstractContextManager[None]:
        """Counts a run as in progress while the context is open."""
        return self._running.labels(suite).track_inprogress()

    def finished(self, *, suite: str, state: str) -> None:
        self._runs.labels(suite, state).inc()

    def measured(self, *, suite: str, attention: str, tokens: int, tokens_per_s: float) -> None:
        self._speed.labels(suite, attention, length_class(tokens)).set(tokens_per_s)
