"""Health, cancellation, and stopping without losing a call."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from grpc import StatusCode
from grpc_health.v1 import health_pb2

from service.pb.lln.v1 import embeddings_pb2 as pb
from service.pb.tei.v1 import tei_pb2
from tests.service.outside import metric, wait_for
from tests.service.stubs import embeddings_stub, health_stub, tei_rank_stub

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
SOFTMAX = "sentence-transformers/all-MiniLM-L6-v2"


def some_work(num_texts: int) -> pb.EmbedRequest:
    """Returns work for a CPU: a text of 400 words takes about 0.1 s."""
    return pb.EmbedRequest(input=[pb.Input(text="word " * 400)] * num_texts)


@pytest.mark.parametrize("service", ["", "lln.v1.Embeddings", "lln.v1.Models"])
def test_health_of_a_ready_server(service: str, channel: grpc.Channel) -> None:
    request = health_pb2.HealthCheckRequest(service=service)

    assert health_stub(channel).Check(request).status == SERVING
    watch = health_stub(channel).Watch(request)
    assert next(watch).status == SERVING
    watch.cancel()


def test_health_of_an_unknown_service(channel: grpc.Channel) -> None:
    request = health_pb2.HealthCheckRequest(service="lln.v1.Nothing")

    with pytest.raises(grpc.RpcError) as raised:
        health_stub(channel).Check(request)
    assert raised.value.code() == StatusCode.NOT_FOUND
    watch = health_stub(channel).Watch(request)
    assert next(watch).status == health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
    watch.cancel()


def test_cancelling_a_call_stops_its_work(channel: grpc.Channel, server: Any) -> None:
    name = 'lln_cancelled_total{reason="caller_left"}'
    before = metric(server.http_url, name)
    call = embeddings_stub(channel).Embed.future(some_work(1_000))  # minutes of work on a CPU
    wait_for(lambda: metric(server.http_url, "lln_queue_depth") > 0, "work that waits")
    call.cancel()

    assert len(embeddings_stub(channel).Embed(some_work(1)).embeddings) == 1
    assert metric(server.http_url, "lln_queue_depth") == 0
    assert metric(server.http_url, name) > before


def test_a_deadline_reaches_the_queue(channel: grpc.Channel, server: Any) -> None:
    before = metric(server.http_url, "lln_cancelled_total")
    call = embeddings_stub(channel).Embed.future(some_work(1_000), timeout=1.5)
    wait_for(lambda: metric(server.http_url, "lln_queue_depth") > 0, "work that waits")

    assert call.code() == StatusCode.DEADLINE_EXCEEDED
    assert len(embeddings_stub(channel).Embed(some_work(1)).embeddings) == 1
    assert metric(server.http_url, "lln_queue_depth") == 0
    assert metric(server.http_url, "lln_cancelled_total") > before


class Client:
    """Calls of every kind are in flight when the server is asked to stop."""

    def __init__(self, channel: grpc.Channel) -> None:
        self.over = threading.Event()
        self.unary = embeddings_stub(channel).Embed.future(some_work(16))
        self.stream = embeddings_stub(channel).EmbedStream(self._requests())
        self.watch = health_stub(channel).Watch(health_pb2.HealthCheckRequest())
        self.ranking = tei_rank_stub(channel).RerankStream.future(self._texts())

    def _texts(self) -> Iterator[tei_pb2.RerankStreamRequest]:
        yield tei_pb2.RerankStreamRequest(query="a query", text="a text")
        self.over.wait(120)

    def _requests(self) -> Iterator[pb.EmbedStreamRequest]:
        for number in range(20):
            yield pb.EmbedStreamRequest(id=str(number), input=pb.Input(text="word " * 100))
        self.over.wait(120)


@pytest.mark.long
def test_stopping_answers_what_is_in_flight(start_server: Any) -> None:
    server = start_server(LLN_MODELS=SOFTMAX)
    with grpc.insecure_channel(server.grpc_address) as channel:
        client = Client(channel)
        assert next(client.watch).status == SERVING
        answers = [next(client.stream)]
        stopped_at = time.monotonic()
        assert server.stop() == 0, server.log()

        # Far less than the drain timeout: neither the watcher nor the idle stream delayed the stop.
        assert time.monotonic() - stopped_at < 20
        assert len(client.unary.result(timeout=10).embeddings) == 16
        with pytest.raises(grpc.RpcError) as raised:
            answers.extend(client.stream)
        assert raised.value.code() == StatusCode.UNAVAILABLE
        assert "stopping" in str(raised.value.details())
        assert [answer.id for answer in answers] == [str(number) for number in range(20)]
        assert [change.status for change in client.watch] == [NOT_SERVING]
        assert client.ranking.code() == StatusCode.UNAVAILABLE
        client.over.set()
