"""Servers in processes of their own, with their metrics and processor time."""

from __future__ import annotations

import math
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from service.addresses import Target

_START_TIMEOUT_S = 120.0
_STOP_TIMEOUT_S = 60.0


@dataclass(frozen=True)
class Served:
    target: Target
    process: subprocess.Popen[bytes]
    ready_s: float
    """From its start to its readiness."""

    def metric(self, name: str) -> float:
        """The sum over all series of a metric."""
        page = self.get("/metrics")
        lines = (line for line in page.splitlines() if line.startswith(name))
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line[len(name)] in " {")

    def get(self, path: str) -> str:
        url = f"http://{self.target.host}:{self.target.port}{path}"
        with urllib.request.urlopen(url, timeout=30) as answer:
            content: bytes = answer.read()
        return content.decode()

    def memory_mb(self, field: str) -> float:
        """A figure of the kernel's about the process, such as VmRSS or RssAnon."""
        lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        kib = next(int(line.split()[1]) for line in lines if line.startswith(f"{field}:"))
        return kib * 1024 / 1e6

    @property
    def cpu_s(self) -> float:
        """Processor time of the process so far."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        ticks = int(fields[11]) + int(fields[12])  # user and system
        return ticks / os.sysconf("SC_CLK_TCK")


@contextmanager
def our_server(threads: int, **settings: str) -> Iterator[Served]:
    """`lln serve` with the default model only, once it is ready."""
    with TemporaryDirectory() as folder:
        port = free_port()
        environment = {
            "LLN_HTTP_PORT": str(port),
            "LLN_GRPC_PORT": "0",
            "LLN_MODELS": "default",
            "LLN_LOG_LEVEL": "warning",
            "LLN_ENGINE__NUM_THREADS": str(threads),
            "LLN_BATCH_FOLDER": "",
            "LLN_BENCHMARK_HISTORY": str(Path(folder) / "benchmarks.sqlite"),
            **settings,
        }
        command = [sys.executable, "-m", "service.cli", "serve"]
        started_at = time.monotonic()
        with _running(command, environment) as process:
            yield _wait_until_ready(process, port, "/health/ready", started_at)


@contextmanager
def other_server(command: Sequence[str], port: int, **environment: str) -> Iterator[Served]:
    """Another server, started by this command on this port, once it is ready."""
    started_at = time.monotonic()
    with _running(command, environment) as process:
        yield _wait_until_ready(process, port, "/v1/models", started_at)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def _running(
    command: Sequence[str], environment: Mapping[str, str]
) -> Iterator[subprocess.Popen[bytes]]:
    inherited = {name: value for name, value in os.environ.items() if not _is_left_out(name)}
    process = subprocess.Popen(command, env={**inherited, **environment}, stdout=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _is_left_out(name: str) -> bool:
    """Settings of ours, and a developer's wish for no bytecode: without it Python compiles all of
    our modules at each start, which takes longer than to load them."""
    return name.startswith("LLN_") or name == "PYTHONDONTWRITEBYTECODE"


def _wait_until_ready(
    process: subprocess.Popen[bytes], port: int, path: str, started_at: float
) -> Served:
    starting = Served(Target(host="127.0.0.1", port=port), process, ready_s=math.inf)
    while time.monotonic() < started_at + _START_TIMEOUT_S and process.poll() is None:
        try:
            starting.get(path)
        except (urllib.error.URLError, ConnectionError, TimeoutError):  # it listens before it loads
            time.sleep(0.05)
        else:
            return replace(starting, ready_s=time.monotonic() - started_at)
    code = process.poll()
    if code is not None:
        raise RuntimeError(f"the server ended with exit code {code} before it was ready")
    raise RuntimeError(f"the server was not ready within {_START_TIMEOUT_S:g} s")
