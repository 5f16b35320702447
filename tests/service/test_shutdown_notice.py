"""A server that is asked to stop says so first, and serves on until load balancers have noticed."""

from __future__ import annotations

import signal
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import httpx
import pytest
from grpc_health.v1 import health_pb2

from service.pb.lln.v1 import embeddings_pb2 as pb
from tests.service.outside import metric, wait_for
from tests.service.stubs import MODEL, embeddings_stub, health_stub

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


def test_during_the_notice_the_server_is_not_ready_and_serves_on(start_server: Any) -> None:
    server = start_server(LLN_MODELS=MODEL, LLN_SHUTDOWN_NOTICE_S="600")
    url = server.http_url
    with grpc.insecure_channel(server.grpc_address) as channel:
        watch = health_stub(channel).Watch(health_pb2.HealthCheckRequest())
        assert next(watch).status == SERVING
        server.process.send_signal(signal.SIGTERM)
        assert next(watch).status == NOT_SERVING
        watch.cancel()

        ready = httpx.get(f"{url}/health/ready")
        assert (ready.status_code, ready.json()["error"]["code"]) == (503, "draining")
        assert metric(url, "lln_ready") == 0
        assert httpx.get(f"{url}/health/live").status_code == 200
        answer = httpx.post(f"{url}/v1/embeddings", json={"input": "x"}, timeout=60)
        assert answer.status_code == 200
        assert answer.headers["connection"] == "close"
        embedded = embeddings_stub(channel).Embed(pb.EmbedRequest(input=[pb.Input(text="x")]))
        assert len(embedded.embeddings) == 1

    assert server.stop() == 0, "a second signal ends the notice"
    assert '"event":"stop announced"' in server.log()


@pytest.mark.long
def test_the_notice_ends_by_itself(start_server: Any) -> None:
    server = start_server(LLN_MODELS=MODEL, LLN_SHUTDOWN_NOTICE_S="0.3")
    with httpx.Client(base_url=server.http_url) as client:
        assert "connection" not in client.get("/health/live").headers
        server.process.send_signal(signal.SIGTERM)
        wait_for(lambda: '"event":"draining"' in server.log(), "the drain")
    assert server.process.wait(60) == 0
    assert "Traceback" not in server.log()


@pytest.mark.skipif(signal.getsignal(signal.SIGHUP) == signal.SIG_IGN, reason="run by nohup")
def test_a_closed_terminal_stops_the_server_in_order(start_server: Any) -> None:
    server = start_server(LLN_MODELS=MODEL)
    server.process.send_signal(signal.SIGHUP)
    assert server.process.wait(60) == 0
    assert '"event":"stopped"' in server.log()


def test_a_second_signal_ends_the_server_without_waiting(start_server: Any) -> None:
    server = start_server(LLN_MODELS="default", LLN_ENGINE__DRAIN_TIMEOUT_S="600")
    text = "word " * 200_000
    with grpc.insecure_channel(server.grpc_address) as channel, ThreadPoolExecutor(1) as pool:
        url = f"{server.http_url}/v1/embeddings"
        posted = pool.submit(httpx.post, url, json={"input": text}, timeout=60)
        request = pb.EmbedRequest(input=[pb.Input(text=text)])
        called = embeddings_stub(channel).Embed.future(request)
        wait_for(lambda: metric(server.http_url, "lln_request_tokens_sum") > 400_000, "both texts")
        server.process.send_signal(signal.SIGTERM)
        wait_for(lambda: '"event":"draining"' in server.log(), "the drain")
        time.sleep(0.5)  # all parts wait for the texts
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(10) == 0
        assert called.code() == grpc.StatusCode.UNAVAILABLE
        with pytest.raises(httpx.TransportError):
            posted.result()
