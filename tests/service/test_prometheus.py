"""A real Prometheus scrapes a server under load; every panel and rule has data."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.prometheus import RULES, ask, needs_prometheus, panels, running_prometheus
from tests.service.conftest import RunningServer, StartServer

pytestmark = [needs_prometheus, pytest.mark.long]


@pytest.fixture
def server(start_server: StartServer) -> RunningServer:
    """A server that samples the attention of every text."""
    return start_server(LLN_ENGINE__DRIFT_RATE="1", LLN_ENGINE__DRIFT_MAX_SHARE="1")


@pytest.fixture
def prometheus(server: Any, tmp_path: Path) -> Iterator[httpx.Client]:
    """The deployed configuration, with another target address and interval."""
    config = {
        "global": {"scrape_interval": "500ms", "evaluation_interval": "500ms"},
        "rule_files": [str(RULES / "*.yml")],
        "scrape_configs": [
            {
                "job_name": "lln",
                "scrape_timeout": "400ms",
                "static_configs": [{"targets": [server.http_url.removeprefix("http://")]}],
            }
        ],
    }
    with running_prometheus(tmp_path, config) as client:
        yield client


def queries() -> dict[str, str]:
    """Yields the place of each query, and the query over the last seconds."""
    return {
        f"{place}: {target['legendFormat']}": target["expr"].replace("$__rate_interval", "10s")
        for place, panel in panels().items()
        for target in panel["targets"]
    }


def traffic(http: httpx.Client) -> None:
    """Sends requests of every kind that the dashboards show."""
    long = "one more word " * 700  # more tokens than the longest texts that panels tell apart
    assert http.post("/v1/embeddings", json={"input": long}).status_code == 200
    assert http.post("/v1/embeddings", json={"input": ["a", "b c"]}).status_code == 200
    assert http.post("/v1/embeddings", json={"input": []}).status_code == 400
    assert http.post("/v1/diagnostics", json={"text": "a b c", "layers": [0]}).status_code == 200
    plan = {"lengths": [16], "attentions": ["lln_diag"], "repeats": 1}
    assert http.post("/v1/benchmarks", json=plan).status_code == 202


def test_every_query_has_data(server: Any, http: httpx.Client, prometheus: httpx.Client) -> None:
    missing = queries()
    assert len(missing) > 60
    deadline = time.monotonic() + 40
    with ThreadPoolExecutor(4) as pool:
        while missing and time.monotonic() < deadline:
            list(pool.map(lambda _: traffic(http), range(2)))
            missing = {
                place: query for place, query in missing.items() if not _has(prometheus, query)
            }
    assert not missing
    groups = prometheus.get("/api/v1/rules").json()["data"]["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    assert len(rules) > 15
    assert {rule["name"]: rule["lastError"] for rule in rules if rule.get("lastError")} == {}
    assert {rule["health"] for rule in rules} <= {"ok", "unknown"}


def _has(prometheus: httpx.Client, query: str) -> bool:
    """Returns whether a result has a number: quantiles of nothing are NaN."""
    values = [float(series["value"][1]) for series in ask(prometheus, query)]
    return any(not math.isnan(value) for value in values)
