"""Servers of `lln serve` on a Ray cluster of this machine."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.processes import processes_below
from engine.training.calibrate import CalibrationPlan
from engine.training.convert import adapt_model, built_in_texts
from service.replicas.proxy import CALLBACK, CALLBACK_PATH
from tests.service.outside import free_port
from tests.service.processes import clean_environment, lln

# A process of its own, not forked from one with torch: Ray does not start in those.
LLN = (sys.executable, "-m", "service.cli")
START_S, STOP_S = 120, 90
# Ray's workers would step back behind whatever else has the cores.
RAY_SETTINGS = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0"}


@dataclass(frozen=True)
class Served:
    url: str
    grpc_address: str
    process: subprocess.Popen[bytes]
    log: Path

    def processes(self, title: str) -> list[int]:
        """The cluster's processes whose titles contain this."""
        return [pid for pid in _ray_processes() if title in _title(pid)]


@contextmanager
def ray_cluster(folder: Path) -> Iterator[str]:
    """The address of a Ray cluster of two cores and no GPU."""
    port = free_port()
    options = f"--head --block --port={port} --num-cpus=2 --num-gpus=0"
    # Processes that nothing here needs, and that take seconds to start.
    options += " --no-monitor --include-dashboard=false --include-log-monitor=false"
    ray = Path(sys.executable).with_name("ray")
    with (folder / "ray.log").open("wb") as log:
        process = subprocess.Popen(
            [ray, "start", *options.split(), f"--temp-dir={folder}/ray"],
            env=clean_environment(**{CALLBACK: CALLBACK_PATH}, **RAY_SETTINGS),
            stdout=log,
            stderr=log,
        )
    try:
        until(lambda: _accepts(port), process, folder / "ray.log")
        yield f"127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(STOP_S)


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


def until(is_so: Callable[[], bool], process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_S
    while not is_so():
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.1)


def _accepts(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _title(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


def _ray_processes() -> list[int]:
    return [process.pid for process in processes_below(os.getpid()) if "ray::" in process.name]
