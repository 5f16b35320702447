"""Traces, received by a real OTLP collector, and trace ids in logs and exemplars."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from concurrent import futures
from typing import Any

import grpc
import httpx
import pytest
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from service.environment import load_settings
from service.pb.lln.v1 import embeddings_pb2
from service.tracing import OtlpTracing, tracing_of
from tests.service.stubs import embeddings_stub

pytestmark = pytest.mark.long

TRACE_ID = "0af7651916cd43dd8448eb211c80319c"
PARENT_ID = "b7ad6b7169203331"
TRACEPARENT = f"00-{TRACE_ID}-{PARENT_ID}-01"
SWEPT_TRACE_ID = "1af7651916cd43dd8448eb211c80319c"
NOT_SAMPLED = f"00-{'1' * 32}-{PARENT_ID}-00"
OPENMETRICS = {"accept": "application/openmetrics-text; version=1.0.0"}


class Collector(trace_service_pb2_grpc.TraceServiceServicer):
    def __init__(self) -> None:
        self.spans: list[Span] = []

    def Export(self, request: Any, context: Any) -> Any:
        for resource in request.resource_spans:
            for scope in resource.scope_spans:
                self.spans.extend(scope.spans)
        return trace_service_pb2.ExportTraceServiceResponse()


@pytest.fixture(scope="module")
def collector() -> Iterator[tuple[Collector, str]]:
    server, collector = grpc.server(futures.ThreadPoolExecutor(2)), Collector()
    add = trace_service_pb2_grpc.add_TraceServiceServicer_to_server
    add(collector, server)  # type: ignore[no-untyped-call]
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield collector, f"http://127.0.0.1:{port}"
    server.stop(None)


def test_spans_of_a_request(start_server: Any, collector: tuple[Collector, str]) -> None:
    received, endpoint = collector
    server = start_server(LLN_OTLP_ENDPOINT=endpoint, LLN_LOG_FORMAT="json", LLN_MODELS="default")
    with httpx.Client(base_url=server.http_url, timeout=60) as http:
        body = {"input": ["one text", "and another one"]}
        http.post("/v1/embeddings", json=body, headers={"traceparent": TRACEPARENT})
        http.post("/v1/embeddings", json=body, headers={"traceparent": NOT_SAMPLED})
        page = http.get("/metrics", headers=OPENMETRICS).text
    with grpc.insecure_channel(server.grpc_address) as channel:
        request = embeddings_pb2.EmbedRequest(input=[{"text": "over gRPC"}])
        stub = embeddings_stub(channel)
        stub.Embed(request, metadata=[("traceparent", TRACEPARENT)])
    assert server.stop() == 0, server.log()  # stopping sends the remaining spans

    ours = [span for span in received.spans if span.trace_id.hex() == TRACE_ID]
    names = sorted(span.name for span in ours)
    assert names == sorted(
        ["POST /v1/embeddings", "lln.v1.Embeddings/Embed", *["tokenise", "queue", "unit"] * 2]
    )
    roots = {span.span_id: span for span in ours if span.parent_span_id.hex() == PARENT_ID}
    assert len(roots) == 2
    for span in ours:
        if span.span_id not in roots:
            root = roots[span.parent_span_id]
            # The clock is read twice.
            assert span.start_time_unix_nano >= root.start_time_unix_nano - 1e6, span.name
            assert span.start_time_unix_nano <= span.end_time_unix_nano
            assert span.end_time_unix_nano <= root.end_time_unix_nano + 1e6, span.name
    (unit,) = [span for span in ours if span.name == "unit" and _attribute(span, "lln.texts") == 2]
    assert _attribute(unit, "lln.tokens") > 4
    assert not [span for span in received.spans if span.trace_id.hex() == "1" * 32]

    lines = [json.loads(line) for line in server.log().splitlines()]
    requests = [line for line in lines if line["event"] == "request"]
    assert [line["trace_id"] for line in requests][:2] == [TRACE_ID, "1" * 32]
    assert all(line["request_id"] for line in requests)
    assert TRACE_ID in _exemplars(page)


def test_tiles_of_a_long_text_are_spans_below_its_unit(
    start_server: Any, collector: tuple[Collector, str]
) -> None:
    received, endpoint = collector
    server = start_server(
        LLN_OTLP_ENDPOINT=endpoint, LLN_MODELS="default", LLN_ENGINE__MIN_SWEEP_TOKENS="1024"
    )
    with httpx.Client(base_url=server.http_url, timeout=60) as http:
        headers = {"traceparent": f"00-{SWEPT_TRACE_ID}-{PARENT_ID}-01"}
        answer = http.post("/v1/documents", json={"text": "word " * 4000}, headers=headers)
        assert answer.is_success
    assert server.stop() == 0, server.log()
    ours = [span for span in received.spans if span.trace_id.hex() == SWEPT_TRACE_ID]
    (unit,) = [span for span in ours if span.name == "unit"]
    tiles = [span for span in ours if span.name == "tiles"]
    assert len(tiles) > 1
    assert {span.parent_span_id for span in tiles} == {unit.span_id}
    assert sum(_attribute(span, "lln.tiles") for span in tiles) == _attribute(unit, "lln.tiles")
    assert unit.start_time_unix_nano == min(span.start_time_unix_nano for span in tiles)
    assert unit.end_time_unix_nano == max(span.end_time_unix_nano for span in tiles)


def _attribute(span: Span, name: str) -> int:
    return next(one.value.int_value for one in span.attributes if one.key == name)


def _exemplars(page: str) -> set[str]:
    return {
        sample.exemplar.labels["trace_id"]
        for family in text_string_to_metric_families(page)  # type: ignore[no-untyped-call]
        for sample in family.samples
        if sample.exemplar is not None
    }


def test_off_by_default_but_the_callers_trace_is_logged(http: httpx.Client, server: Any) -> None:
    http.get("/v1/models", headers={"traceparent": TRACEPARENT})
    http.get("/v1/models", headers={"traceparent": "nonsense"})
    page = http.get("/metrics", headers=OPENMETRICS).text
    assert _exemplars(page) == set()
    deadline = time.monotonic() + 5
    while f'"trace_id":"{TRACE_ID}"' not in server.log():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert "nonsense" not in server.log()


def test_an_endpoint_turns_it_on() -> None:
    assert type(tracing_of(load_settings())).__name__ == "Tracing"
    tracing = tracing_of(load_settings(otlp_endpoint="http://127.0.0.1:1"))
    assert isinstance(tracing, OtlpTracing)
    tracing.stop(10)


def test_an_unreachable_collector_does_not_delay_the_stop() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        endpoint = f"http://127.0.0.1:{silent.getsockname()[1]}"
        tracing = tracing_of(load_settings(otlp_endpoint=endpoint))
        with tracing.request("http", lambda _: None):
            pass
        started_at = time.monotonic()
        tracing.stop(0.2)
        assert time.monotonic() - started_at < 2
