"""The device: the queue before it, the batches and other units that it runs, and its ranks."""

from __future__ import annotations

from typing import get_args

from engine.scheduling.observer import EngineObserver
from engine.scheduling.request import UnitKind
from service.metrics.buckets import SECONDS, SEQUENCES, TOKENS
from service.metrics.catalogue import Catalogue


class DeviceMetrics(EngineObserver):
    def __init__(self, catalogue: Catalogue) -> None:
        self._add_queue(catalogue)
        self._add_batches(catalogue)
        self._add_units(catalogue)
        self._add_ranks(catalogue)

    def _add_queue(self, catalogue: Catalogue) -> None:
        self._queue_depth = catalogue.gauge("queue_depth", "Texts in the queue.")
        self._queue_tokens = catalogue.gauge("queue_tokens", "Tokens in the queue.")
        self._queue_tokens_limit = catalogue.gauge(
            "queue_tokens_limit", "Most tokens in the queue; more work is rejected."
        )

    def _add_batches(self, catalogue: Catalogue) -> None:
        self._batch_tokens = catalogue.histogram(
            "batch_tokens", "Tokens of one packed batch.", TOKENS
        )
        self._batch_sequences = catalogue.histogram(
            "batch_sequences", "Texts in one packed batch.", SEQUENCES
        )
        self._batch_tokens_limit = catalogue.gauge(
            "batch_tokens_limit", "Most tokens in a packed batch."
        )

    def _add_units(self, catalogue: Catalogue) -> None:
        self._compute_seconds = catalogue.histogram(
            "compute_seconds", "Device time of one unit of work.", SECONDS, ("kind",)
        )
        self._units = catalogue.counter(
            "units", "Units of work that the device finished.", ("kind",)
        )
        self._failed_units = catalogue.counter(
            "failed_units", "Units of work that failed.", ("kind",)
        )
        for kind in get_args(UnitKind):  # a rate would miss the first event of a new series
            self._compute_seconds.labels(kind)
            self._units.labels(kind)
            self._failed_units.labels(kind)
        self._preemptions = catalogue.counter(
            "preemptions", "Times that long work was preempted by short work."
        )
        self._oom_recoveries = catalogue.counter(
            "oom_recoveries", "Retries in smaller pieces after the device ran out of memory."
        )

    def _add_ranks(self, catalogue: Catalogue) -> None:
        self._ranks = catalogue.gauge(
            "ranks", "Processes that read one long document together, this one included."
        )
        self._ranks.set(1)
        self._ranks_lost = catalogue.counter(
            "ranks_lost", "Ranks that ended, or said nothing for too long."
        )

    def start_limits(self, *, queue_tokens: int, batch_tokens: int) -> None:
        """Sets the limits that the queue and batch metrics are compared with."""
        self._queue_tokens_limit.set(queue_tokens)
        self._batch_tokens_limit.set(batch_tokens)

    def queue_changed(self, *, depth: int, tokens: int) -> None:
        self._queue_depth.set(depth)
        self._queue_tokens.set(tokens)

    def unit_finished(
        self,
        *,
        unit: UnitKind,
        model: str,
        sequences: int,
        tokens: int,
        compute_s: float,
        failed: bool,
    ) -> None:
        self._units.labels(unit).inc()
        self._compute_seconds.labels(unit).observe(compute_s)
        if failed:
            self._failed_units.labels(unit).inc()
        if unit == "batch":
            self._batch_tokens.observe(tokens)
            self._batch_sequences.observe(sequences)

    def preempted(self) -> None:
        self._preemptions.inc()

    def recovered_from_oom(self) -> None:
        self._oom_recoveries.inc()

    def ranks_changed(self, num_present: int) -> None:
        self._ranks.set(num_present)

    def rank_lost(self) -> None:
        self._ranks_lost.inc()
