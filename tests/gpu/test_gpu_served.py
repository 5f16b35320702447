"""A server on a GPU answers over HTTP. Skipped where its packages are missing."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import numpy as np
import pytest

from tests.gpu.device import DEVICE, LEAST_COSINE, MARKS, assert_alike, engine

pytestmark = MARKS

ROOT = Path(__file__).parents[2]
START_S = 120


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def ask(url: str, body: dict[str, object]) -> dict[str, list[dict[str, list[float]]]]:
    request = urllib.request.Request(
        url, json.dumps(body).encode(), {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        found: dict[str, list[dict[str, list[float]]]] = json.load(answer)
        return found


def test_a_server_answers(tmp_path: Path) -> None:
    for package in ("fastapi", "pydantic_settings", "uvicorn", "grpc"):
        pytest.importorskip(package)
    port = free_port()
    environment = {
        **os.environ,
        "LLN_ENGINE__DEVICE": DEVICE,
        "LLN_ENGINE__DTYPE": "float32",
    }
    # The server refuses settings that it does not know.
    for name in ("LLN_GPU_TESTS_DEVICE", "LLN_COMMIT"):
        environment.pop(name, None)
    command = [sys.executable, "-m", "service.cli", "serve"]
    command += ["--http-port", str(port), "--grpc-port", "0"]
    log = tmp_path / "server.log"
    texts = ["Otters make their homes by rivers.", "The price of tea rose."]
    with log.open("w") as file:
        server = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=file, stderr=file)
    try:
        wait_until_ready(port, server, log)
        answer = ask(f"http://127.0.0.1:{port}/v1/embeddings", {"model": "default", "input": texts})
    finally:
        server.terminate()
        server.wait(30)
    found = np.array([one["embedding"] for one in answer["data"]], dtype=np.float32)
    assert_alike(found, engine(device="cpu").embed(texts), LEAST_COSINE["float32"], "over HTTP")


def wait_until_ready(port: int, server: subprocess.Popen[bytes], log: Path) -> None:
    ends_at = time.monotonic() + START_S
    while time.monotonic() < ends_at:
        assert server.poll() is None, f"the server ended:\n{log.read_text()[-3000:]}"
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/health/ready", timeout=5).close()
        except OSError:
            time.sleep(0.25)
        else:
            return
    raise AssertionError(f"the server was not ready after {START_S} s:\n{log.read_text()[-3000:]}")
