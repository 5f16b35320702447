"""Texts on their way through the engine: what came in, how long it took, what was refused."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal

from engine.scheduling.observer import EngineObserver
from engine.scheduling.request import TimedResult
from service.metrics.buckets import LENGTH_CLASSES, SECONDS, TOKENS, length_class
from service.metrics.catalogue import Catalogue
from service.tracing import Tracing

_REJECTIONS = (
    "queue_full",
    "too_many_requests",
    "too_many_streams",
    "too_many_watches",
    "too_many_arriving",
    "too_many_body_bytes",
    "text_too_long",
    "too_many_inputs",
    "insufficient_memory",
    "deadline_exceeded",
    "unavailable",
    "model_not_found",
)


class TextMetrics(EngineObserver):
    def __init__(self, catalogue: Catalogue, tracing: Tracing) -> None:
        self.tracing = tracing
        self._add_times(catalogue)
        self._tokens = catalogue.counter("tokens", "Accepted tokens.", ("model",))
        self._request_tokens = catalogue.histogram(
            "request_tokens", "Tokens of one accepted text.", TOKENS
        )
        self._truncated = catalogue.counter(
            "truncated", "Texts truncated at the caller's request.", ("model",)
        )
        self._cancelled = catalogue.counter(
            "cancelled", "Texts cancelled before their result was ready.", ("reason",)
        )
        self._rejected = catalogue.counter(
            "rejected",
            "Rejected calls, by error code; too_many_requests is the limit on open requests.",
            ("reason",),
        )
        self._start_series()

    def _add_times(self, catalogue: Catalogue) -> None:
        self._queue_seconds = catalogue.histogram(
            "queue_seconds", "Time that a text waited for the device.", SECONDS
        )
        self._tokenise_seconds = catalogue.histogram(
            "tokenise_seconds",
            "Time to tokenise the texts of one call, at most 64 at a time.",
            SECONDS,
        )
        self._text_seconds = catalogue.histogram(
            "text_seconds",
            "Time of one text in the queue and on the device, by length class.",
            SECONDS,
            ("length",),
        )

    def _start_series(self) -> None:
        """Creates series before their first event, which a rate would otherwise miss."""
        for length in LENGTH_CLASSES:
            self._text_seconds.labels(length)
        for reason in ("caller_left", "deadline"):
            self._cancelled.labels(reason)
        for reason in _REJECTIONS:
            self._rejected.labels(reason)

    def start_texts(self, models: Iterable[str]) -> None:
        """Creates the series of the served models before their first text."""
        for model in models:
            self._tokens.labels(model)
            self._truncated.labels(model)

    def accepted(self, *, model: str, tokens: int) -> None:
        self._tokens.labels(model).inc(tokens)
        self._request_tokens.observe(tokens)

    def rejected(self, *, reason: str) -> None:
        self._rejected.labels(reason).inc()

    def truncated(self, *, model: str) -> None:
        self._truncated.labels(model).inc()

    def cancelled(self, *, reason: Literal["caller_left", "deadline"]) -> None:
        self._cancelled.labels(reason).inc()

    def waited(self, *, seconds: float) -> None:
        self._queue_seconds.observe(seconds)

    def tokenised(self, *, texts: int, tokens: int, seconds: float) -> None:
        self._tokenise_seconds.observe(seconds)
        self.tracing.tokenised(texts=texts, tokens=tokens, seconds=seconds)

    def served(self, results: Sequence[TimedResult[Any]]) -> None:
        exemplar = self.tracing.exemplar()
        for result in results:
            histogram = self._text_seconds.labels(length_class(result.tokens))
            histogram.observe(result.queue_s + result.compute_s, exemplar)
        self.tracing.served(results)
