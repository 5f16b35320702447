"""A real Prometheus scrapes a server under load, and every panel and rule of ours has data."""

from __future__ import annotations

import json
import math
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from deploy.grafana.build import on_disk
from tests.service.conftest import RunningServer, StartServer

PROMETHEUS = shutil.which("prometheus")
RULES = Path(__file__).resolve().parents[2] / "deploy" / "prometheus" / "rules"

pytestmark = pytest.mark.skipif(
    PROMETHEUS is None, reason="prometheus is not installed (Debian: apt install prometheus)"
)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@pytest.fixture
def server(start_server: StartServer) -> RunningServer:
    """One that samples the attention of every text, as a busier one does of some."""
    return start_server(LLN_ENGINE__DRIFT_RATE="1", LLN_ENGINE__DRIFT_MAX_SHARE="1")


@pytest.fixture
def prometheus(server: Any, tmp_path: Path) -> Iterator[httpx.Client]:
    """Deployed configuration but for the target's address and the pace."""
    assert PROMETHEUS is not None
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
    (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(config))
    address = f"127.0.0.1:{free_port()}"
    process = subprocess.Popen(
        [
            PROMETHEUS,
            f"--config.file={tmp_path / 'prometheus.yml'}",
            f"--storage.tsdb.path={tmp_path / 'data'}",
            f"--web.listen-address={address}",
            "--log.level=warn",
        ]
    )
    try:
        with httpx.Client(base_url=f"http://{address}", timeout=10) as client:
            _wait_until_ready(client)
            yield client
    finally:
        process.kill()
        process.wait()


def _wait_until_ready(client: httpx.Client) -> None:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        try:
            if client.get("/-/ready").status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.1)
    pytest.fail("Prometheus was not ready in 30 s")


def queries() -> dict[str, str]:
    """Where each query stands, and the query over the last seconds."""
    found = {}
    for path, text in on_disk().items():
        for panel in json.loads(text)["panels"]:
            for target in panel.get("targets", ()):
                place = f"{path.stem}: {panel['title']}: {target['legendFormat']}"
                found[place] = target["expr"].replace("$__rate_interval", "10s")
    return found


def traffic(http: httpx.Client) -> None:
    """Something of everything the dashboards show."""
    long = "one more word " * 1200
    assert http.post("/v1/embeddings", json={"input": long}).status_code == 200
    assert http.post("/v1/embeddings", json={"input": ["a", "b c"]}).status_code == 200
    assert http.post("/v1/embeddings", json={"input": []}).status_code == 400
    assert http.post("/v1/diagnostics", json={"text": "a b c"}).status_code == 200
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
    """Whether an answer has a number that is one: quantiles of nothing are NaN."""
    answer = prometheus.get("/api/v1/query", params={"query": query}).json()
    assert answer["status"] == "success", (query, answer)
    values = [float(series["value"][1]) for series in answer["data"]["result"]]
    return any(not math.isnan(value) for value in values)
