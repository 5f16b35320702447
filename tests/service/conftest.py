"""A real server for every test that talks to one: `lln serve` in a process of its own.

The server that all tests share runs in a new interpreter, as a user starts it. The others are
forked, which saves their imports.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import httpx
import pytest

from tests.service.outside import free_port
from tests.service.page.browser import SHARED_BROWSER, Answers, fresh_tab, go, is_of_the_page
from tests.service.processes import ForkedProcess, clean_environment
from tests.service.replicas.ray_cluster import SHARED_CLUSTER, Cluster, is_on_ray
from tests.service.stubs import embeddings_stub

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

START_TIMEOUT_S = 120
STOP_TIMEOUT_S = 60


@dataclass(frozen=True)
class RunningServer:
    """A server that is ready, and where to find it."""

    process: subprocess.Popen[bytes] | ForkedProcess
    http_url: str
    grpc_address: str
    log_path: Path

    def log(self) -> str:
        return self.log_path.read_text()

    def stop(self) -> int:
        """Asks it to stop as an orchestrator would, and returns its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(STOP_TIMEOUT_S)


StartServer = Callable[..., RunningServer]


def launch(folder: Path, settings: dict[str, str], *, forked: bool = True) -> RunningServer:
    """Starts `lln serve` on free ports, unless the settings name ports.

    Forked, or in a new interpreter.
    """
    settings = {
        "LLN_HTTP_PORT": str(free_port()),
        "LLN_GRPC_PORT": str(free_port()),
        **settings,
    }
    log_path = folder / "server.log"
    log_path.touch()  # it is read before a forked server has opened it
    settings.setdefault("LLN_BATCH_FOLDER", str(folder / "batches"))
    settings.setdefault("LLN_BENCHMARK_HISTORY", str(folder / "benchmarks.sqlite"))
    environment = clean_environment(**settings)
    process: subprocess.Popen[bytes] | ForkedProcess
    if not forked:
        command = [sys.executable, "-m", "service.cli", "serve"]
        with log_path.open("wb") as log:
            process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
    else:
        process = ForkedProcess(["serve"], environment, stdout=log_path, stderr=log_path)
    scheme = "https" if "LLN_TLS_CERT_FILE" in settings else "http"
    url = f"{scheme}://127.0.0.1:{settings['LLN_HTTP_PORT']}"
    server = RunningServer(process, url, f"127.0.0.1:{settings['LLN_GRPC_PORT']}", log_path)
    _wait_until_ready(server)
    return server


def _wait_until_ready(server: RunningServer) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        if server.process.poll() is not None:
            pytest.fail(f"the server ended with {server.process.returncode}:\n{server.log()}")
        if _is_ready(server):
            return
        time.sleep(0.03)
    server.process.kill()
    pytest.fail(f"the server was not ready in {START_TIMEOUT_S} s:\n{server.log()}")


def _is_ready(server: RunningServer) -> bool:
    if server.http_url.startswith("https"):  # it may ask for a certificate that we do not have
        return '"event":"serving"' in server.log() and _accepts_connections(server)
    try:
        return httpx.get(f"{server.http_url}/health/ready", timeout=5).status_code == 200
    except httpx.TransportError:
        return False


def _accepts_connections(server: RunningServer) -> bool:
    host, port = server.http_url.partition("://")[2].split(":")
    with socket.socket() as probe:
        return probe.connect_ex((host, int(port))) == 0


@pytest.fixture(scope="session", autouse=True)
def certificates_read_once() -> Iterator[None]:
    """Each client of httpx reads the authorities' certificates, which takes longer than most
    requests. What is kept is one context for each way to verify."""
    kept = cache(httpx.create_ssl_context)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("httpx._transports.default.create_ssl_context", kept)
        yield


@pytest.fixture
def model(write_checkpoint: Any) -> str:
    return str(write_checkpoint())


@pytest.fixture
def without_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """None of the server's settings is in the environment."""
    for name in [name for name in os.environ if name.startswith("LLN_")]:
        monkeypatch.delenv(name)


@pytest.fixture(scope="module")
def launch_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartServer]:
    """Like `start_server`, for a server that the tests of a module share."""
    started: list[RunningServer] = []

    def start(**settings: str) -> RunningServer:
        started.append(launch(tmp_path_factory.mktemp("server"), settings))
        return started[-1]

    yield start
    for server in started:
        server.process.send_signal(signal.SIGTERM)  # to all, which then stop side by side
    for server in started:
        assert server.process.wait(STOP_TIMEOUT_S) == 0, server.log()


@pytest.fixture
def start_server(tmp_path: Path) -> Iterator[StartServer]:
    """Starts servers with settings of the test's own; none outlives the test."""
    started: list[RunningServer] = []

    def start(**settings: str) -> RunningServer:
        folder = tmp_path / f"server{len(started)}"
        folder.mkdir()
        started.append(launch(folder, settings))
        return started[-1]

    yield start
    for server in started:
        server.process.kill()
        server.process.wait()


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """One server with default settings, shared by all tests that do not stop it."""
    running = launch(tmp_path_factory.mktemp("server"), {}, forked=False)
    yield running
    assert running.stop() == 0, running.log()


@pytest.fixture
def http(server: RunningServer) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.http_url, timeout=60) as client:
        yield client


@pytest.fixture(scope="module")
def channel(server: RunningServer) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(server.grpc_address) as channel:
        yield channel


@pytest.fixture(scope="module")
def embeddings(channel: grpc.Channel) -> Any:
    return embeddings_stub(channel)


@pytest.fixture
def browser() -> Browser:
    return SHARED_BROWSER.get()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(nextitem: pytest.Item | None) -> Generator[None]:
    """The browser ends with the last test of the page: while it runs, so does an event loop, beside
    which other tests could not run their own. The cluster ends with the last test on Ray."""
    try:
        return (yield)
    finally:
        if nextitem is None or not is_of_the_page(nextitem.nodeid):
            SHARED_BROWSER.close()
        if nextitem is None or not is_on_ray(nextitem.nodeid):
            SHARED_CLUSTER.close()


@pytest.fixture(scope="session")
def answers() -> Answers:
    return Answers()


@pytest.fixture
def page(browser: Browser, http: httpx.Client, answers: Answers) -> Iterator[Page]:
    """A fresh tab on the front page, in which nothing may go wrong unnoticed."""
    with fresh_tab(browser, str(http.base_url), answers=answers) as tab:
        go(tab)
        yield tab


@pytest.fixture(scope="module")
def ray_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """For what servers on Ray write."""
    pytest.importorskip("ray")
    return tmp_path_factory.mktemp("ray")


@pytest.fixture
def ray_cluster() -> Cluster:
    """A Ray cluster of two cores and no GPU."""
    return SHARED_CLUSTER.get()


@pytest.fixture(scope="module")
def ray_address() -> str:
    """Of that cluster."""
    return SHARED_CLUSTER.get().address


@pytest.fixture(scope="session")
def ray_model(tmp_path_factory: pytest.TempPathFactory, write_checkpoint: Any) -> str:
    """A small one, in a folder, that reads texts of any length."""
    from tests.service.replicas.ray_servers import small_model

    return small_model(write_checkpoint(), tmp_path_factory.mktemp("small") / "model")
