"""All Prometheus metrics of a server. The engine's observer and both protocols record here.

Label values come from the program only (routes, served models, error codes, layer numbers), never
from requests, so the number of series is bounded.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    GCCollector,
    Histogram,
    PlatformCollector,
    ProcessCollector,
    disable_created_metrics,
)
from prometheus_client.exposition import choose_encoder

from engine.scheduling.observer import EngineObserver
from engine.scheduling.request import TimedResult, UnitKind
from engine.types import ModelInfo
from service.tracing import Tracing

Protocol: TypeAlias = Literal["http", "grpc"]

OK = "ok"
"""The `code` of a request that did not fail."""

UNMATCHED = "unmatched"
"""The `method` of a request for an unknown route or RPC."""

_SECONDS = (
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1,
    2.5,
    5,
    10,
    30,
    60,
    300,
    600,
)
_TOKENS = tuple(2.0**power for power in range(2, 25))
_SEQUENCES = tuple(2.0**power for power in range(11))
_REJECTIONS = (
    "queue_full",
    "too_many_requests",
    "too_many_streams",
    "too_many_arriving",
    "too_many_body_bytes",
    "text_too_long",
    "too_many_inputs",
    "insufficient_memory",
    "deadline_exceeded",
    "unavailable",
    "model_not_found",
)
_LENGTHS = (128, 512, 2048, 8192, 32_768, 131_072, 1_048_576)
_LONGER = "longer"
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


class Exposition(NamedTuple):
    body: bytes
    content_type: str


class Metrics(EngineObserver):
    """The metrics of one server, in their own registry."""

    def __init__(self, tracing: Tracing | None = None) -> None:
        self.tracing = tracing or Tracing()
        # In the text format each _created series would look like another gauge.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        self.labels: dict[str, tuple[str, ...]] = {}
        """The labels of each of our metrics, including those without any series yet."""
        self._add_requests()
        self._add_engine()
        self._add_device()
        self._add_layers()
        self._add_benchmarks()
        self._add_batch_api()
        self._add_ranks()
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        GCCollector(registry=self.registry)

    def _counter(self, name: str, help_text: str, labels: Sequence[str] = ()) -> Counter:
        return Counter(self._named(name, labels), help_text, labels, registry=self.registry)

    def _gauge(self, name: str, help_text: str, labels: Sequence[str] = ()) -> Gauge:
        return Gauge(self._named(name, labels), help_text, labels, registry=self.registry)

    def _histogram(
        self, name: str, help_text: str, buckets: Sequence[float], labels: Sequence[str] = ()
    ) -> Histogram:
        return Histogram(
            self._named(name, labels), help_text, labels, buckets=buckets, registry=self.registry
        )

    def _named(self, name: str, labels: Sequence[str]) -> str:
        self.labels[f"lln_{name}"] = tuple(labels)
        return f"lln_{name}"

    def _add_requests(self) -> None:
        self._requests = self._counter(
            "requests", "Answered requests, by outcome.", ("protocol", "method", "code")
        )
        self._request_seconds = self._histogram(
            "request_seconds",
            "Time from the arrival of a request to its answer.",
            _SECONDS,
            ("protocol", "method"),
        )
        self._in_progress = self._gauge(
            "requests_in_progress",
            "Requests in progress, except those for /metrics itself.",
            ("protocol",),
        )
        for protocol in ("http", "grpc"):
            self._in_progress.labels(protocol)
        self._ready = self._gauge(
            "ready", "1 while the server accepts work and its models respond, else 0."
        )

    def _add_engine(self) -> None:
        self._queue_seconds = self._histogram(
            "queue_seconds", "Time that a text waited for the device.", _SECONDS
        )
        self._compute_seconds = self._histogram(
            "compute_seconds", "Device time of one unit of work.", _SECONDS, ("kind",)
        )
        self._tokenise_seconds = self._histogram(
            "tokenise_seconds", "Time to tokenise the texts of one call.", _SECONDS
        )
        self._text_seconds = self._histogram(
            "text_seconds",
            "Time of one text in the queue and on the device, by length class.",
            _SECONDS,
            ("length",),
        )
        self._tokens = self._counter("tokens", "Accepted tokens.", ("model",))
        self._request_tokens = self._histogram(
            "request_tokens", "Tokens of one accepted text.", _TOKENS
        )
        self._batch_tokens = self._histogram("batch_tokens", "Tokens of one packed batch.", _TOKENS)
        self._batch_sequences = self._histogram(
            "batch_sequences", "Texts in one packed batch.", _SEQUENCES
        )
        self._queue_depth = self._gauge("queue_depth", "Texts in the queue.")
        self._queue_tokens = self._gauge("queue_tokens", "Tokens in the queue.")
        self._queue_tokens_limit = self._gauge(
            "queue_tokens_limit", "Most tokens in the queue; more work is rejected."
        )
        self._batch_tokens_limit = self._gauge(
            "batch_tokens_limit", "Most tokens in a packed batch."
        )
        self._units = self._counter("units", "Units of work that the device finished.", ("kind",))
        self._failed_units = self._counter("failed_units", "Units of work that failed.", ("kind",))
        self._preemptions = self._counter(
            "preemptions", "Times that long work was preempted by short work."
        )
        self._oom_recoveries = self._counter(
            "oom_recoveries", "Retries in smaller pieces after the device ran out of memory."
        )
        self._truncated = self._counter(
            "truncated", "Texts truncated at the caller's request.", ("model",)
        )
        self._cancelled = self._counter(
            "cancelled", "Texts cancelled before their result was ready.", ("reason",)
        )
        self._rejected = self._counter(
            "rejected",
            "Rejected calls, by error code; too_many_requests is the limit on open requests.",
            ("reason",),
        )
        self._start_series()

    def _start_series(self) -> None:
        """Creates series before their first event, which a rate would otherwise miss."""
        for kind in get_args(UnitKind):
            self._units.labels(kind)
            self._failed_units.labels(kind)
            self._compute_seconds.labels(kind)
        for length in (*map(str, _LENGTHS), _LONGER):
            self._text_seconds.labels(length)
        for reason in ("caller_left", "deadline"):
            self._cancelled.labels(reason)
        for reason in _REJECTIONS:
            self._rejected.labels(reason)

    def _add_device(self) -> None:
        self._model = self._gauge(
            "model_info",
            "1 for each served model.",
            ("model", "family", "attention", "dim", "max_tokens", "revision", "device", "dtype"),
        )
        memory = self._gauge(
            "device_memory_bytes",
            "Memory of the process on its device; on a CPU, its resident memory.",
            ("kind",),
        )
        memory.labels("allocated").set_function(lambda: _device_memory().allocated)
        memory.labels("peak").set_function(lambda: _device_memory().peak)

    def _add_layers(self) -> None:
        self._layers = {
            instrument: self._histogram(
                name,
                f"Mean {instrument.replace('_', ' ')} of a layer's heads ({meaning}), for each "
                "sampled text of live traffic.",
                buckets,
                ("model", "layer"),
            )
            for instrument, (name, meaning, buckets) in _DRIFT.items()
        }

    def _add_benchmarks(self) -> None:
        self._benchmarks = self._counter(
            "benchmarks", "Finished benchmark runs, by final state.", ("suite", "state")
        )
        self._benchmarks_running = self._gauge(
            "benchmarks_running", "Benchmark runs in progress.", ("suite",)
        )
        self._benchmark_speed = self._gauge(
            "benchmark_tokens_per_second",
            "Tokens per second in the last benchmark run, by attention and length class.",
            ("suite", "attention", "length"),
        )

    def _add_ranks(self) -> None:
        self._ranks = self._gauge(
            "ranks", "Processes that read one long document together, this one included."
        )
        self._ranks.set(1)
        self._ranks_lost = self._counter(
            "ranks_lost", "Ranks that ended, or said nothing for too long."
        )

    def ranks_changed(self, num_present: int) -> None:
        self._ranks.set(num_present)

    def rank_lost(self) -> None:
        self._ranks_lost.inc()

    def _add_batch_api(self) -> None:
        self._batch_api_requests = self._counter(
            "batch_api_requests", "Answered requests of the Batch API, by outcome.", ("outcome",)
        )
        for outcome in ("completed", "failed"):
            self._batch_api_requests.labels(outcome)
        self._batch_api_open = self._gauge(
            "batch_api_open", "Batches of the Batch API that have not finished."
        )
        self._batch_api_bytes = self._gauge(
            "batch_api_stored_bytes", "Bytes of the files of the Batch API on the disk."
        )

    def batches_are(self, num_open: int, stored_bytes: int) -> None:
        self._batch_api_open.set(num_open)
        self._batch_api_bytes.set(stored_bytes)

    def batch_request_answered(self, outcome: Literal["completed", "failed"]) -> None:
        self._batch_api_requests.labels(outcome).inc()

    def start_suites(self, suites: Iterable[str]) -> None:
        """Creates the series of the benchmark suites before their first run."""
        for suite in suites:
            self._benchmarks_running.labels(suite)
            for state in ("done", "failed", "cancelled", "interrupted"):
                self._benchmarks.labels(suite, state)

    def benchmark_running(self, suite: str) -> AbstractContextManager[None]:
        """Counts a run as in progress while the context is open."""
        return self._benchmarks_running.labels(suite).track_inprogress()

    def benchmark_finished(self, *, suite: str, state: str) -> None:
        self._benchmarks.labels(suite, state).inc()

    def benchmark_measured(
        self, *, suite: str, attention: str, tokens: int, tokens_per_s: float
    ) -> None:
        self._benchmark_speed.labels(suite, attention, length_class(tokens)).set(tokens_per_s)

    def start_methods(self, protocol: Protocol, methods: Iterable[str]) -> None:
        """Creates the series of a protocol's methods before their first request."""
        for method in methods:
            self._requests.labels(protocol, method, OK)
            self._request_seconds.labels(protocol, method)

    def start_readiness(self, is_ready: Callable[[], bool]) -> None:
        self._ready.set_function(is_ready)

    def start_limits(self, *, queue_tokens: int, batch_tokens: int) -> None:
        """Sets the limits that the queue and batch metrics are compared with."""
        self._queue_tokens_limit.set(queue_tokens)
        self._batch_tokens_limit.set(batch_tokens)

    def start_models(self, models: Iterable[ModelInfo]) -> None:
        """Creates the series of the served models before their first request."""
        for info in models:
            self._tokens.labels(info.name)
            self._truncated.labels(info.name)
            self._start_layers(info)
            kinds = "+".join(dict.fromkeys(info.attention))
            self._model.labels(
                info.name,
                info.family,
                kinds,
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

    def attention_sampled(self, *, model: str, layer: int, instrument: str, value: float) -> None:
        self._layers[instrument].labels(model, layer).observe(value)

    def accepted(self, *, model: str, tokens: int) -> None:
        self._tokens.labels(model).inc(tokens)
        self._request_tokens.observe(tokens)

    def rejected(self, *, reason: str) -> None:
        self._rejected.labels(reason).inc()

    def truncated(self, *, model: str) -> None:
        self._truncated.labels(model).inc()

    def cancelled(self, *, reason: Literal["caller_left", "deadline"]) -> None:
        self._cancelled.labels(reason).inc()

    def preempted(self) -> None:
        self._preemptions.inc()

    def recovered_from_oom(self) -> None:
        self._oom_recoveries.inc()

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

    def expose(self, accept: str = "") -> Exposition:
        """Returns the page for Prometheus, in the format of its Accept header."""
        try:
            encode, content_type = choose_encoder(accept)
        except (TypeError, ValueError):  # the header asks for a version that is not a number
            encode, content_type = choose_encoder("")
        return Exposition(encode(self.registry), content_type)


def length_class(tokens: int) -> str:
    """Returns the smallest of a few bounds that is at least `tokens`, as a label value."""
    return next((str(bound) for bound in _LENGTHS if tokens <= bound), _LONGER)


class _Memory(NamedTuple):
    allocated: float
    peak: float


def _device_memory() -> _Memory:
    # Not imported here: reading a metric must not initialise a device.
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized():
        return _Memory(torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated())
    return _resident_memory()


def _resident_memory() -> _Memory:
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:  # not Linux
        return _Memory(float("nan"), float("nan"))
    kilobytes = {line.split(":")[0]: line.split()[1] for line in lines if line.startswith("Vm")}
    return _Memory(float(kilobytes["VmRSS"]) * 1024, float(kilobytes["VmHWM"]) * 1024)
