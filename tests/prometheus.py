"""A real Prometheus, and what there is to ask it, for the tests of deploy/."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from deploy.grafana.build import on_disk
from tests.service.outside import free_port

PROMETHEUS = shutil.which("prometheus")
PROMTOOL = shutil.which("promtool")
RULES = Path(__file__).resolve().parents[1] / "deploy" / "prometheus" / "rules"

needs_prometheus = pytest.mark.skipif(
    PROMETHEUS is None, reason="prometheus is not installed (Debian: apt install prometheus)"
)
needs_promtool = pytest.mark.skipif(
    PROMTOOL is None, reason="promtool is not installed (Debian: apt install prometheus)"
)


def panels() -> dict[str, dict[str, Any]]:
    """The panels of all dashboards, by where they stand."""
    return {
        f"{path.stem}: {panel['title']}": panel
        for path, text in on_disk().items()
        for panel in json.loads(text)["panels"]
        if "targets" in panel
    }


@contextmanager
def running_prometheus(
    folder: Path, config: dict[str, Any], *arguments: str
) -> Iterator[httpx.Client]:
    """Prometheus with its files in a folder, and a client to ask it with."""
    assert PROMETHEUS is not None
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    address = f"127.0.0.1:{free_port()}"
    process = subprocess.Popen(
        [
            PROMETHEUS,
            f"--config.file={folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address={address}",
            "--log.level=warn",
            *arguments,
        ]
    )
    try:
        with httpx.Client(base_url=f"http://{address}", timeout=10) as client:
            wait_until_ready(client)
            yield client
    finally:
        process.kill()
        process.wait()


def ask(client: httpx.Client, query: str, **params: float) -> list[dict[str, Any]]:
    """The series that a query has now, or at `time`."""
    answer = client.get("/api/v1/query", params={"query": query, **params}).json()
    assert answer["status"] == "success", (query, answer)
    found: list[dict[str, Any]] = answer["data"]["result"]
    return found


def wait_until_ready(client: httpx.Client) -> None:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        try:
            if client.get("/-/ready").status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.1)
    pytest.fail("Prometheus was not ready in 30 s")
