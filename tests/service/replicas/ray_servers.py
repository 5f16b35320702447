"""Servers of `lln serve` on a Ray cluster of this machine."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.processes import processes_below
from engine.training.calibrate import CalibrationPlan
from engine.training.convert import adapt_model, built_in_texts
from tests.service.outside import free_port
from tests.service.processes import clean_environment, lln
from tests.service.replicas.ray_cluster import STOP_S, until

# A process of its own, not forked from one with torch: Ray does not start in those.
LLN = (sys.executable, "-m", "service.cli")


@dataclass(frozen=True)
class Served:
    url: str
    grpc_address: str
    process: subprocess.Popen[bytes]
    log: Path

    def processes(self, title: str) -> list[int]:
        """The cluster's processes whose titles contain this."""
        return [pid for pid in _ray_processes() if title in _title(pid)]


def small_model(checkpoint: Path, folder: Path) -> str:
    """One that reads texts of any length: each process loads it and measures its prices."""
    plan = CalibrationPlan(block_size=16, sample_tokens=48, num_samples=4)
    return str(adapt_model(str(checkpoint), folder, built_in_texts()[:8], plan).folder)


@contextmanager
def serving(folder: Path, model: str, *arguments: str, **settings: str) -> Iterator[Served]:
    http_port, grpc_port = free_port(), free_port()
    log = folder / "server.log"
    environment = clean_environment(
        LLN_MODELS=model,
        LLN_HTTP_PORT=str(http_port),
        LLN_GRPC_PORT=str(grpc_port),
        LLN_BATCH_FOLDER=str(folder / "batches"),
        LLN_BENCHMARK_HISTORY=":memory:",
        **settings,
    )
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*LLN, "serve", *arguments], env=environment, stdout=output, stderr=output
        )
    try:
        until(lambda: b'"serving"' in log.read_bytes(), process, log)
        yield Served(f"http://127.0.0.1:{http_port}", f"127.0.0.1:{grpc_port}", process, log)
        if process.poll() is None:
            process.terminate()
            assert process.wait(STOP_S) == 0, log.read_text()
    finally:
        process.kill()
        process.wait()


def run_lln(*arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
    """A command that only asks the cluster can be forked."""
    ports = {"LLN_HTTP_PORT": str(free_port()), "LLN_GRPC_PORT": str(free_port())}
    models = {} if "--models" in arguments else {"LLN_MODELS": "default"}
    return lln(*arguments, **models, **ports, **settings)


def _title(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


def _ray_processes() -> list[int]:
    return [process.pid for process in processes_below(os.getpid()) if "ray::" in process.name]
