"""Every request is answered: under load, when clients leave, and when the server stops."""

from __future__ import annotations

import re
import signal
import threading
import time
from collections import Counter
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from tests.service.outside import metric, wait_for

LONG = "A long text that keeps the device busy for a while. " * 400


def embed(url: str, text: str, timeout_s: float = 120) -> httpx.Response:
    return httpx.post(f"{url}/v1/embeddings", json={"input": text}, timeout=timeout_s)


@pytest.mark.long
def test_two_hundred_requests_at_once(server: Any) -> None:
    texts = [f"Text number {number} " + "word " * (number % 60) for number in range(200)]
    barrier = threading.Barrier(len(texts))

    def ask(text: str) -> httpx.Response:
        barrier.wait()
        return embed(server.http_url, text)

    with ThreadPoolExecutor(len(texts)) as pool:
        answers = list(pool.map(ask, texts))
    assert Counter(answer.status_code for answer in answers) == {200: 200}
    # Each client got the vector of its own text.
    alone = embed(server.http_url, texts[123]).json()["data"][0]["embedding"]
    assert answers[123].json()["data"][0]["embedding"] == pytest.approx(alone, abs=2e-6)


def test_a_client_that_leaves_frees_the_queue(server: Any) -> None:
    url = server.http_url
    before = server.log().count('"code":"cancelled"')
    with ThreadPoolExecutor(8) as pool:
        left = [pool.submit(embed, url, LONG, timeout_s=0.5) for _ in range(8)]
        assert all(isinstance(one.exception(), httpx.TimeoutException) for one in left)
    wait_for(lambda: server.log().count('"code":"cancelled"') > before, "a cancelled request")
    wait_for(lambda: metric(url, "lln_queue_depth") == 0, "an empty queue")
    assert embed(url, "still here").status_code == 200


@pytest.mark.slow
def test_sigterm_answers_all_in_flight_then_exits_0(start_server: Any) -> None:
    server = start_server(LLN_MODELS="default")
    url = server.http_url
    in_progress = 'lln_requests_in_progress{protocol="http"}'
    with ThreadPoolExecutor(64) as pool, httpx.Client(base_url=url) as watcher:
        asked: list[Future[httpx.Response]] = [
            pool.submit(embed, url, f"{number} {LONG[:1_000]}") for number in range(60)
        ]
        wait_for(lambda: metric(url, in_progress) > 50, "requests in flight")
        assert watcher.get("/health/ready").status_code == 200
        server.process.send_signal(signal.SIGTERM)
        wait_for(lambda: '"event":"draining"' in server.log(), "the drain")
        assert _readiness(watcher) == 503
        wait_for(lambda: _refuses_connections(url), "a closed port")
        answers = [one.result() for one in asked]
    assert Counter(answer.status_code for answer in answers) == {200: 60}
    assert server.process.wait(60) == 0
    assert '"event":"stopped"' in server.log()
    assert "Traceback" not in server.log()


def _readiness(watcher: httpx.Client) -> int:
    try:
        return watcher.get("/health/ready").status_code
    except httpx.TransportError:  # closed as idle; a load balancer would send nothing here either
        return 503


def _refuses_connections(url: str) -> bool:
    try:
        httpx.get(f"{url}/health/live", timeout=5)
    except httpx.ConnectError:
        return True
    except httpx.TransportError:
        return False
    return False


def test_a_full_queue_answers_with_retry_after(start_server: Any) -> None:
    server = start_server(LLN_MODELS="default", LLN_ENGINE__MAX_QUEUE_TOKENS="3000")
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: embed(server.http_url, LONG[:6_000]), range(8)))
    statuses = Counter(answer.status_code for answer in answers)
    assert set(statuses) == {200, 429}, statuses
    refused = next(answer for answer in answers if answer.status_code == 429)
    assert re.fullmatch(r"[1-9]\d*", refused.headers["retry-after"])
    error = refused.json()["error"]
    assert error["code"] == "queue_full"
    assert error["limit"] == 3_000
    assert error["type"] == "rate_limit_error"


def test_a_drain_timeout_still_answers(start_server: Any) -> None:
    server = start_server(LLN_MODELS="default", LLN_ENGINE__DRAIN_TIMEOUT_S="1")
    with ThreadPoolExecutor(8) as pool:
        asked = [pool.submit(embed, server.http_url, LONG * 2) for _ in range(8)]
        wait_for(lambda: metric(server.http_url, "lln_queue_depth") > 0, "work that waits")
        server.process.send_signal(signal.SIGTERM)
        told_at = time.monotonic()
        answers = [one.result() for one in asked]
    assert {answer.status_code for answer in answers} <= {200, 503}
    late = [answer.json()["error"] for answer in answers if answer.status_code == 503]
    assert late
    assert {error["type"] for error in late} == {"service_unavailable"}
    assert server.process.wait(60) == 0
    assert time.monotonic() - told_at < 3, "one second for all parts, and a little to say so"
