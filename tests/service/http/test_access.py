"""The Access middleware: keys and request slots."""

from __future__ import annotations

import asyncio

import pytest
from starlette.types import Message, Receive, Scope, Send

from engine.errors import QueueFull
from service.errors import Unauthenticated
from service.http.middleware.access import AccessMiddleware
from service.metrics import Metrics
from service.security import ApiKeys, Origins, RequestLimit

KEY = "a-key-of-the-settings-0123"
WITH_KEY = {"x-api-key": KEY}


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


@pytest.fixture
def permits(metrics: Metrics) -> RequestLimit:
    return RequestLimit(1, metrics)


def ask(permits: RequestLimit, path: str, headers: dict[str, str]) -> list[str]:
    """Returns the paths that pass the middleware of a server with keys, also for metrics."""
    came_through = []

    async def within(scope: Scope, receive: Receive, send: Send) -> None:
        came_through.append(scope["path"])

    async def receive() -> Message:
        raise AssertionError("nothing is read at the door")

    async def send(message: Message) -> None:
        raise AssertionError("nothing is answered at the door")

    door = AccessMiddleware(
        within, Origins(()), ApiKeys([KEY]), permits, unguarded={"/health/live"}
    )
    raw = [(name.encode(), value.encode()) for name, value in headers.items()]
    asyncio.run(door({"type": "http", "path": path, "headers": raw}, receive, send))
    return came_through


def rejected(metrics: Metrics) -> float | None:
    return metrics.registry.get_sample_value("lln_rejected_total", {"reason": "too_many_requests"})


def test_a_full_server_rejects_and_counts(metrics: Metrics, permits: RequestLimit) -> None:
    assert rejected(metrics) == 0
    with permits.slot(), pytest.raises(QueueFull, match="the limit is 1"):
        ask(permits, "/v1/embeddings", WITH_KEY)
    assert rejected(metrics) == 1
    assert ask(permits, "/v1/embeddings", WITH_KEY) == ["/v1/embeddings"]


def test_metrics_need_a_key_but_no_request_slot(metrics: Metrics, permits: RequestLimit) -> None:
    with permits.slot():
        assert ask(permits, "/metrics", WITH_KEY) == ["/metrics"]
        with pytest.raises(Unauthenticated):
            ask(permits, "/metrics", {})
        assert ask(permits, "/health/live", {}) == ["/health/live"]
    assert rejected(metrics) == 0
