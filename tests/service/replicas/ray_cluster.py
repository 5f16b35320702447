"""A Ray cluster of this machine, which the tests that need one share."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.service.kept import Kept
from tests.service.outside import free_port
from tests.service.processes import clean_environment

START_S, STOP_S = 120, 90
_TESTS_ON_RAY = re.compile(
    r"tests/service/(bulk/test_bulk_ray|replicas/test_(ray_ranks|replicas))\.py"
)
_SETTINGS = {
    # The developer may have a token for another cluster. Ray looks when it is first used.
    "RAY_AUTH_MODE": "disabled",
    "RAY_USAGE_STATS_ENABLED": "0",
    # Workers would step back behind whatever else has the cores.
    "RAY_worker_niceness": "0",
}


class Cluster(NamedTuple):
    address: str
    folder: str


def is_on_ray(nodeid: str) -> bool:
    """Tells it by the file of a test."""
    return _TESTS_ON_RAY.fullmatch(nodeid.partition("::")[0]) is not None


@contextmanager
def ray_cluster() -> Iterator[Cluster]:
    """Of two cores and no GPU."""
    from service.replicas.proxy import CALLBACK, CALLBACK_PATH

    pytest.importorskip("ray")
    port = free_port()
    options = f"--head --block --port={port} --num-cpus=2 --num-gpus=0"
    # Processes that nothing here needs, and that take seconds to start.
    options += " --no-monitor --include-dashboard=false --include-log-monitor=false"
    ray = Path(sys.executable).with_name("ray")
    with (
        # Of a short path: Ray keeps sockets in it.
        tempfile.TemporaryDirectory(prefix="lln-", ignore_cleanup_errors=True) as folder,
        pytest.MonkeyPatch.context() as patch,
    ):
        for name, value in _SETTINGS.items():
            patch.setenv(name, value)
        log_path = Path(folder) / "ray.log"
        with log_path.open("wb") as log:
            process = subprocess.Popen(
                [ray, "start", *options.split(), f"--temp-dir={folder}/ray"],
                env=clean_environment(**{CALLBACK: CALLBACK_PATH}),
                stdout=log,
                stderr=log,
            )
        try:
            until(lambda: _accepts(port), process, log_path)
            yield Cluster(f"127.0.0.1:{port}", folder)
        finally:
            process.terminate()
            process.wait(STOP_S)


SHARED_CLUSTER = Kept(ray_cluster)
"""Starting one takes seconds and several processes."""


def until(is_so: Callable[[], bool], process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_S
    while not is_so():
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.1)


def _accepts(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
