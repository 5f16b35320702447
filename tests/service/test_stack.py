"""The stack without containers, and the soak test."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest
import yaml

from benchmarks.rows import Plan
from benchmarks.suites.soak import measure
from benchmarks.workbench import Workbench
from tests.prometheus import needs_prometheus, wait_until_ready
from tests.service.outside import free_port

ROOT = Path(__file__).resolve().parents[2]


def write_command(path: Path, command: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\nexec {command}\n")
    path.chmod(0o755)
    return path


@needs_prometheus
def test_the_stack_runs_from_a_path_with_spaces_and_signs(tmp_path: Path) -> None:
    """The server and Grafana are replaced by processes that wait: only their start is tested."""
    checkout, commands = tmp_path / "a check-out & #1", tmp_path / "commands"
    shutil.copytree(ROOT / "deploy", checkout / "deploy")
    write_command(checkout / ".venv" / "bin" / "lln", "sleep 60")
    write_command(commands / "grafana", "sleep 60")
    port = free_port()
    environment = {
        "PATH": f"{commands}:{os.environ['PATH']}",
        "PROMETHEUS_PORT": str(port),
    }
    stack = subprocess.Popen(
        [str(checkout / "deploy" / "run_stack.sh")], env=environment, start_new_session=True
    )
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}") as prometheus:
            wait_until_ready(prometheus)
            groups = prometheus.get("/api/v1/rules").json()["data"]["groups"]
        assert {Path(group["file"]).name for group in groups} == {"alerts.yml", "recording.yml"}
        provisioning = checkout / ".cache" / "stack" / "provisioning" / "dashboards" / "lln.yaml"
        (provider,) = yaml.safe_load(provisioning.read_text())["providers"]
        assert Path(provider["options"]["path"], "lln.json").exists()
        stack.send_signal(signal.SIGTERM)
        stack.wait(20)
    finally:
        if stack.poll() is None:
            os.killpg(stack.pid, signal.SIGKILL)


@pytest.mark.slow
@needs_prometheus
def test_the_stack_runs_without_containers_and_stops_as_a_whole(tmp_path: Path) -> None:
    http_port, prometheus_port = free_port(), free_port()
    environment = {
        **os.environ,
        "LLN": str(write_command(tmp_path / "lln", f'"{sys.executable}" -m service.cli "$@"')),
        "LLN_MODELS": "default",
        "LLN_HTTP_PORT": str(http_port),
        "LLN_GRPC_PORT": "0",
        "LLN_BENCHMARK_HISTORY": ":memory:",
        "PROMETHEUS_PORT": str(prometheus_port),
    }
    command = [str(ROOT / "deploy" / "run_stack.sh"), str(tmp_path)]
    stack = subprocess.Popen(command, env=environment, start_new_session=True)
    try:
        _wait_until_scraped(f"http://127.0.0.1:{prometheus_port}")
        assert httpx.get(f"http://127.0.0.1:{http_port}/health/ready").status_code == 200
        stack.send_signal(signal.SIGTERM)
        stack.wait(40)
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"http://127.0.0.1:{http_port}/health/live")
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"http://127.0.0.1:{prometheus_port}/-/ready")
    finally:
        if stack.poll() is None:
            os.killpg(stack.pid, signal.SIGKILL)


def _wait_until_scraped(prometheus: str) -> None:
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline:
        try:
            asked = httpx.get(f"{prometheus}/api/v1/query", params={"query": "lln_ready == 1"})
            if asked.json()["data"]["result"]:
                return
        except (httpx.TransportError, ValueError, KeyError):
            pass
        time.sleep(0.5)
    pytest.fail("Prometheus did not see a ready server in 90 s")


@pytest.mark.slow
def test_soak_of_a_minute() -> None:
    rows = list(measure(Workbench(threads=2), Plan(minutes=1)))
    assert len(rows) == 3
    by_measure = {row.measure: row for row in rows}
    assert by_measure["answers that were not what was to be expected"].is_met
    assert by_measure["descriptors at the end less those after warm-up"].is_met
    # A minute does not warm a server up; the limit for half an hour is 2 %.
    assert by_measure["growth of resident memory after warm-up"].value < 0.2
