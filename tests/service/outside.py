"""What tests see of a server from outside: its ports, its metrics, its vectors, and waiting."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from typing import Any

import httpx


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def wait_for(condition: Callable[[], bool], what: str, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited {seconds} s for {what}"
        time.sleep(0.02)


def metric(url: str, name: str) -> float:
    """Of one series where its labels are named, or else of all together."""
    page = httpx.get(f"{url}/metrics", timeout=60).text
    named = (f"{name} ", f"{name}{{")
    values = [float(line.split()[-1]) for line in page.splitlines() if line.startswith(named)]
    assert values, f"there is no {name}"
    return sum(values)


def given_up(url: str, route: str = "") -> float:
    """Requests whose callers left before the answer, of one route or of all."""
    page = httpx.get(f"{url}/metrics", timeout=60).text
    begins = f'lln_requests_total{{code="cancelled",method="{route}'
    return sum(float(one.split()[-1]) for one in page.splitlines() if one.startswith(begins))


def vectors_of(http: httpx.Client, **body: Any) -> list[list[float]]:
    response = http.post("/v1/embeddings", json=body).raise_for_status()
    return [item["embedding"] for item in response.json()["data"]]
