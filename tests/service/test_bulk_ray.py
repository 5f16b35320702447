"""`lln embed` by workers on Ray: the bytes of one process, whatever is killed; what is refused."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from service.cli.__main__ import main
from tests.service.processes import ForkedProcess, clean_environment, lln

TEXTS = ("the quick brown fox", "seven wizards box", "attention over long documents")
ROWS = 1_200  # three parts


@pytest.fixture(scope="module")
def cluster() -> Iterator[tuple[str, int]]:
    """The address of a Ray cluster with one core and no GPU, and its first process."""
    pytest.importorskip("ray")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory(prefix="lln-ray-") as folder:
        head = subprocess.Popen(
            [
                *(sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block"),
                *("--port", str(port), "--num-cpus", "1", "--num-gpus", "0"),
                *("--object-store-memory", str(100 * 2**20), "--temp-dir", folder),
                *("--include-dashboard", "false", "--disable-usage-stats"),
            ],
            env=clean_environment(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            address = f"127.0.0.1:{port}"
            while not _answers(port):
                assert head.poll() is None, "Ray did not start"
                time.sleep(0.05)
            yield address, head.pid
        finally:
            head.terminate()
            head.wait()


def _answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True


@pytest.fixture
def model(write_checkpoint: Any) -> str:
    return str(write_checkpoint())


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    path = tmp_path / "corpus.jsonl"
    with path.open("w") as file:
        for number in range(ROWS):
            text = None if number % 300 == 7 else f"{TEXTS[number % 3]} {number}"
            file.write(json.dumps({"id": number, "text": text, "year": number % 50}) + "\n")
    return path


@pytest.mark.timeout(600)
def test_a_worker_is_killed_and_the_bytes_are_those_of_one_process(
    cluster: tuple[str, int],
    corpus: Path,
    model: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    address, head = cluster
    out, alone = tmp_path / "out.parquet", tmp_path / "alone.parquet"
    arguments = ["embed", "--from", str(corpus), "--model", model, "--keep", "year", "--json"]
    printed, complained = tmp_path / "printed", tmp_path / "complained"
    process = ForkedProcess(
        [*arguments, "--out", str(out), "--address", address],
        clean_environment(),
        stdout=printed,
        stderr=complained,
    )
    claimed = tmp_path / "out.parquet.partial" / "job.json"
    while process.poll() is None and not claimed.exists():
        time.sleep(0.01)
    [worker] = workers_of(head)
    os.kill(worker, signal.SIGKILL)
    assert process.wait(300) == 0, complained.read_text()
    assert json.loads(printed.read_text())["vectors"] == ROWS - 4
    for name in [name for name in os.environ if name.startswith("LLN_")]:
        monkeypatch.delenv(name)
    assert main([*arguments, "--out", str(alone)]) == 0
    assert out.read_bytes() == alone.read_bytes()
    bad = (tmp_path / "alone.parquet.bad.jsonl").read_bytes()
    assert (tmp_path / "out.parquet.bad.jsonl").read_bytes() == bad


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["--worker-gpus", "1"], "1 worker of 1 GPU needs 1, and the cluster has 0"),
        (["--workers", "2"], "2 workers of 1 CPU need 2, and the cluster has 1"),
        (["--model", "no/such-model"], "no/such-model"),
    ],
)
def test_what_the_cluster_lacks_is_told_before_work_starts(
    cluster: tuple[str, int], corpus: Path, tmp_path: Path, options: list[str], complaint: str
) -> None:
    out = tmp_path / "out.npy"
    done = lln(
        *("embed", "--from", str(corpus), "--out", str(out), "--address", cluster[0], *options),
        HF_HUB_OFFLINE="1",
    )
    assert done.returncode == 1
    assert complaint in done.stderr
    assert not list(tmp_path.glob("out.npy.partial/*.jsonl"))


def test_what_is_no_cluster(corpus: Path, tmp_path: Path) -> None:
    pytest.importorskip("ray")
    job = ("embed", "--from", str(corpus), "--out", str(tmp_path / "out.npy"))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    nobody = lln(*job, "--address", f"127.0.0.1:{port}")
    assert f"no Ray cluster answers at 127.0.0.1:{port}" in nobody.stderr
    assert "must be HOST:PORT" in lln(*job, "--address", "here").stderr
    assert "--workers needs --ray or --address" in lln(*job, "--workers", "2").stderr


def workers_of(ancestor: int) -> list[int]:
    """The processes below one that hold a worker."""
    parents, names = {}, {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            status = (folder / "stat").read_text()
            names[int(folder.name)] = (folder / "cmdline").read_bytes()
        except OSError:
            continue  # it has ended
        parents[int(folder.name)] = int(status.rpartition(")")[2].split()[1])

    def is_below(process: int) -> bool:
        return process == ancestor or (process in parents and is_below(parents[process]))

    return [
        process
        for process, name in names.items()
        if name.startswith(b"ray::Worker") and is_below(process)
    ]
