"""Metrics: all exist before the first request, with the promised names and types."""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress

import pytest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from engine.scheduling.request import TimedResult
from service.metrics import Metrics, length_class
from tests.model_info import MODEL

PROMISED = {
    "requests": "counter",
    "request_seconds": "histogram",
    "requests_in_progress": "gauge",
    "ready": "gauge",
    "ranks": "gauge",
    "ranks_lost": "counter",
    "tokenise_seconds": "histogram",
    "text_seconds": "histogram",
    "queue_tokens_limit": "gauge",
    "batch_tokens_limit": "gauge",
    "benchmarks": "counter",
    "benchmarks_running": "gauge",
    "benchmark_tokens_per_second": "gauge",
    "batch_api_requests": "counter",
    "batch_api_open": "gauge",
    "batch_api_stored_bytes": "gauge",
    "queue_seconds": "histogram",
    "compute_seconds": "histogram",
    "tokens": "counter",
    "request_tokens": "histogram",
    "batch_tokens": "histogram",
    "batch_sequences": "histogram",
    "queue_depth": "gauge",
    "queue_tokens": "gauge",
    "units": "counter",
    "failed_units": "counter",
    "preemptions": "counter",
    "oom_recoveries": "counter",
    "truncated": "counter",
    "cancelled": "counter",
    "rejected": "counter",
    "device_memory_bytes": "gauge",
    "model_info": "gauge",
    "attention_entropy": "histogram",
    "attention_spectral_gap": "histogram",
    "attention_temperature": "histogram",
}


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


def samples(metrics: Metrics) -> list[Sample]:
    page = metrics.expose().body.decode()
    return [one for family in text_string_to_metric_families(page) for one in family.samples]


def value(metrics: Metrics, name: str, labels: Mapping[str, str] | None = None) -> float:
    found = metrics.registry.get_sample_value(f"lln_{name}", dict(labels or {}))
    assert found is not None, f"lln_{name}{labels} is not there"
    return found


def test_all_metrics_have_help_before_the_first_request(metrics: Metrics) -> None:
    page = metrics.expose().body.decode()
    families = {family.name: family for family in text_string_to_metric_families(page)}
    ours = {name.removeprefix("lln_") for name in families if name.startswith("lln_")}
    assert ours == set(PROMISED)
    for name, kind in PROMISED.items():
        assert families[f"lln_{name}"].type == kind
        assert families[f"lln_{name}"].documentation


def test_series_of_routes_and_models_start_at_zero(metrics: Metrics) -> None:
    metrics.start_methods("http", ["POST /v1/embeddings"])
    metrics.start_models([MODEL])
    labels = {"protocol": "http", "method": "POST /v1/embeddings", "code": "ok"}
    assert value(metrics, "requests_total", labels) == 0
    assert value(metrics, "tokens_total", {"model": "default"}) == 0
    assert value(metrics, "units_total", {"kind": "batch"}) == 0
    assert any(one.name == "lln_model_info" and one.value == 1 for one in samples(metrics))


def test_request_tokens_reaches_sixteen_million(metrics: Metrics) -> None:
    metrics.accepted(model="default", tokens=2**24)
    assert value(metrics, "request_tokens_bucket", {"le": "1.6777216e+07"}) == 1
    assert value(metrics, "request_tokens_bucket", {"le": "8.388608e+06"}) == 0


def test_observer(metrics: Metrics) -> None:
    metrics.accepted(model="default", tokens=7)
    metrics.queue_changed(depth=3, tokens=21)
    metrics.waited(seconds=0.2)
    metrics.rejected(reason="queue_full")
    metrics.truncated(model="default")
    metrics.cancelled(reason="caller_left")
    metrics.unit_finished(
        unit="batch", model="default", sequences=3, tokens=21, compute_s=0.1, failed=True
    )
    assert value(metrics, "tokens_total", {"model": "default"}) == 7
    assert value(metrics, "queue_depth") == 3
    assert value(metrics, "queue_tokens") == 21
    assert value(metrics, "queue_seconds_count") == 1
    assert value(metrics, "rejected_total", {"reason": "queue_full"}) == 1
    assert value(metrics, "truncated_total", {"model": "default"}) == 1
    assert value(metrics, "cancelled_total", {"reason": "caller_left"}) == 1
    assert value(metrics, "units_total", {"kind": "batch"}) == 1
    assert value(metrics, "failed_units_total", {"kind": "batch"}) == 1
    assert value(metrics, "compute_seconds_sum", {"kind": "batch"}) == pytest.approx(0.1)
    assert value(metrics, "batch_tokens_sum") == 21
    assert value(metrics, "batch_sequences_sum") == 3


@pytest.mark.parametrize(
    ("tokens", "label"),
    [(1, "128"), (128, "128"), (129, "512"), (2**20, "1048576"), (2**20 + 1, "longer")],
)
def test_length_class(tokens: int, label: str) -> None:
    assert length_class(tokens) == label


def test_served_counts_each_text_in_the_class_of_its_length(metrics: Metrics) -> None:
    metrics.served(
        [TimedResult(None, 0.25, 0.5, tokens=10), TimedResult(None, 1.0, 2.0, tokens=4000)]
    )
    assert value(metrics, "text_seconds_sum", {"length": "128"}) == pytest.approx(0.75)
    assert value(metrics, "text_seconds_sum", {"length": "8192"}) == pytest.approx(3.0)
    assert value(metrics, "text_seconds_count", {"length": "512"}) == 0


def test_request_finished(metrics: Metrics) -> None:
    with metrics.in_progress("grpc"):
        assert value(metrics, "requests_in_progress", {"protocol": "grpc"}) == 1
    metrics.request_finished(protocol="grpc", method="Embed", code="queue_full", seconds=0.5)
    labels = {"protocol": "grpc", "method": "Embed"}
    assert value(metrics, "requests_total", {**labels, "code": "queue_full"}) == 1
    assert value(metrics, "request_seconds_sum", labels) == pytest.approx(0.5)


def test_drift_is_a_histogram_a_layer(metrics: Metrics) -> None:
    metrics.start_models([MODEL])
    labels = {"model": "default", "layer": "5"}
    assert value(metrics, "attention_entropy_count", labels) == 0
    metrics.attention_sampled(model="default", layer=5, instrument="entropy", value=2.2)
    assert value(metrics, "attention_entropy_sum", labels) == pytest.approx(2.2)
    assert value(metrics, "attention_entropy_bucket", {**labels, "le": "2.0"}) == 0
    assert value(metrics, "attention_entropy_bucket", {**labels, "le": "2.5"}) == 1


def test_openmetrics_when_asked_for(metrics: Metrics) -> None:
    page = metrics.expose("application/openmetrics-text; version=1.0.0")
    assert page.content_type.startswith("application/openmetrics-text")
    assert page.body.endswith(b"# EOF\n")


@pytest.mark.skipif(sys.platform != "linux", reason="the values are read from /proc")
def test_a_process_without_free_descriptors_says_so(metrics: Metrics) -> None:
    with no_free_descriptors() as limit:
        pages = [metrics.expose().body.decode() for _ in range(2)]
    for page in pages:
        families = text_string_to_metric_families(page)
        found = {one.name: one.value for family in families for one in family.samples}
        assert found["process_max_fds"] == limit
        assert found["process_open_fds"] > 0.9 * limit  # other threads may have closed some
        assert found["lln_device_memory_bytes"] > 0


@contextmanager
def no_free_descriptors() -> Iterator[int]:
    """Yields the limit, which is reached."""
    before, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = max(map(int, os.listdir("/proc/self/fd"))) + 2
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, most))
    held: list[int] = []
    try:
        with suppress(OSError):
            while True:
                held.append(os.open(os.devnull, os.O_RDONLY))
        yield limit
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (before, most))
        for descriptor in held:
            os.close(descriptor)
