"""The Batch API: its requests, its open batches, and its files."""

from __future__ import annotations

from typing import Literal

from service.metrics.catalogue import Catalogue


class BatchApiMetrics:
    def __init__(self, catalogue: Catalogue) -> None:
        self._requests = catalogue.counter(
            "batch_api_requests", "Answered requests of the Batch API, by outcome.", ("outcome",)
        )
        for outcome in ("completed", "failed"):
            self._requests.labels(outcome)
        self._open = catalogue.gauge(
            "batch_api_open", "Batches of the Batch API that have not finished."
        )
        self._stored_bytes = catalogue.gauge(
            "batch_api_stored_bytes", "Bytes of the files of the Batch API on the disk."
        )

    def changed(self, *, num_open: int, stored_bytes: int) -> None:
        self._open.set(num_open)
        self._stored_bytes.set(stored_bytes)

    def request_answered(self, outcome: Literal["completed", "failed"]) -> None:
        self._requests.labels(outcome).inc()
