"""`lln embed` by workers on Ray: the bytes of one process, whatever is killed; what is refused.

The tests share one cluster of two cores and join it from this process. What only a Ray of the
command's own shows is marked slow.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from lln.ray_data import EmbedTexts
from service.cli.__main__ import main
from tests.service.bulk.bulk_kills import has_pieces, kill_within_a_part
from tests.service.processes import clean_environment, lln
from tests.service.replicas.ray_cluster import Cluster

pytestmark = pytest.mark.long

TEXTS = ("the quick brown fox", "seven wizards box", "attention over long documents")
# A process of its own, not forked from one with torch: Ray does not start in those.
LLN = (sys.executable, "-m", "service.cli")
ROWS = 1_200  # three parts
_START_LIMIT_S = 120

Run = Callable[..., Any]


@pytest.fixture
def temporary() -> Iterator[str]:
    pytest.importorskip("ray")
    with tempfile.TemporaryDirectory(prefix="lln-") as folder:
        yield folder


@pytest.fixture(scope="module")
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


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """A command's JSON, or its one line of complaint if it fails."""
    for name in [name for name in os.environ if name.startswith("LLN_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")

    def call(*arguments: str | Path) -> Any:
        code = main(["embed", *map(str, arguments), "--json"])
        told = capsys.readouterr()
        return told.err.splitlines()[-1] if code else json.loads(told.out)

    return call


@pytest.mark.timeout(300)
def test_a_worker_is_killed_and_the_bytes_are_those_of_one_process(
    ray_cluster: Cluster,
    corpus: Path,
    model: str,
    run: Run,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    out, alone = tmp_path / "out.parquet", tmp_path / "alone.parquet"
    job = ("--from", corpus, "--model", model, "--keep", "year")
    killed: list[int] = []

    def kill_the_worker_within_a_part() -> None:
        end = time.monotonic() + _START_LIMIT_S
        while not has_pieces(tmp_path):
            if time.monotonic() > end:
                return
            time.sleep(0.002)
        for worker in workers_of(ray_cluster.folder):
            os.kill(worker, signal.SIGKILL)
            killed.append(worker)

    killer = Thread(target=kill_the_worker_within_a_part)
    killer.start()
    with caplog.at_level(logging.INFO, "service.bulk"):
        done = run(*job, "--out", out, "--address", ray_cluster.address, "--workers", "1")
    killer.join()
    assert len(killed) == 1
    assert done["vectors"] == ROWS - 4
    sent, kept = told_rows(caplog, "sent"), told_rows(caplog, "kept")
    assert sum(end - first for _, first, end in kept) == ROWS, "no row was embedded twice"
    assert kept[0][1:] < (0, 512), "it was killed within a part"
    assert not any(row[0] == kept[0][0] and row[1] < kept[0][2] for row in sent[1:])
    run(*job, "--out", alone)
    assert out.read_bytes() == alone.read_bytes()
    bad = (tmp_path / "alone.parquet.bad.jsonl").read_bytes()
    assert (tmp_path / "out.parquet.bad.jsonl").read_bytes() == bad


@pytest.mark.timeout(300)
def test_what_the_workers_lack_is_told_before_work_starts(
    ray_cluster: Cluster, corpus: Path, run: Run, tmp_path: Path
) -> None:
    out = tmp_path / "out.npy"
    job = ("--from", corpus, "--out", out, "--address", ray_cluster.address)
    complaints = {
        "64 workers of 1 GPU need 64, and the cluster": ("--worker-gpus", "1", "--workers", "64"),
        "1 worker of 999 CPU needs 999, and the cluster has 2": ("--worker-cpus", "999"),
        "model 'no/such-model' was not found": ("--model", "no/such-model", "--workers", "1"),
    }
    for complaint, options in complaints.items():
        assert complaint in run(*job, *options)
    assert not list(tmp_path.glob("out.npy.partial/0*"))


def test_what_is_no_cluster(corpus: Path, tmp_path: Path) -> None:
    pytest.importorskip("ray")
    job = ("embed", "--from", str(corpus), "--out", str(tmp_path / "out.npy"))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    nobody = lln(*job, "--address", f"127.0.0.1:{port}")
    assert f"no Ray cluster answers at 127.0.0.1:{port}" in nobody.stderr
    assert "must be HOST:PORT" in lln(*job, "--address", "here").stderr
    assert "--workers needs --ray or --address" in lln(*job, "--workers", "2").stderr


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_command_is_killed_with_its_own_ray_and_one_process_ends_its_work(
    temporary: str, corpus: Path, model: str, run: Run, tmp_path: Path
) -> None:
    out, alone = tmp_path / "out.npy", tmp_path / "alone.npy"
    job = ["--from", str(corpus), "--model", model]
    with subprocess.Popen(
        [*LLN, "embed", *job, "--out", str(out), "--ray", "--workers", "2"],
        env=clean_environment(TMPDIR=temporary),
        stderr=subprocess.DEVNULL,
    ) as process:
        kill_within_a_part(process, tmp_path)
    ended = time.monotonic() + 60
    while workers_of(temporary) and time.monotonic() < ended:
        time.sleep(0.1)
    assert not workers_of(temporary), "workers end with the command"
    assert run(*job, "--out", out)["resumed"] > 0
    run(*job, "--out", alone)
    assert out.read_bytes() == alone.read_bytes()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_ray_of_the_commands_own_leaves_nothing(
    temporary: str, corpus: Path, model: str, tmp_path: Path
) -> None:
    done = subprocess.run(
        [*LLN, "embed", "--from", corpus, "--out", tmp_path / "out.npy", "--model", model, "--ray"],
        env=clean_environment(TMPDIR=temporary),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert not list(Path(temporary).iterdir())


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_ray_of_the_commands_own_runs_nothing_that_a_job_needs_not(temporary: str) -> None:
    program = """
import os
from benchmarks.processes import processes_below
from service.bulk.cluster import ClusterOptions, connected

with connected(ClusterOptions(workers=1)):
    print([process.name for process in processes_below(os.getpid())])  # to standard error
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=clean_environment(TMPDIR=temporary),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "raylet" in done.stderr
    for helper in ("log_monitor.py", "monitor.py", "dashboard.py"):
        assert helper not in done.stderr


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_pipeline_of_ray_data_has_the_vectors_of_the_engine(
    ray_cluster: Cluster, model: str, tmp_path: Path
) -> None:
    program = f"""
import json, ray
from lln.ray_data import EmbedTexts

ray.init(address={ray_cluster.address!r})
rows = ray.data.from_items([{{"text": text}} for text in {TEXTS!r}])
rows = rows.map_batches(
    EmbedTexts,
    fn_constructor_args=[{model!r}],
    compute=ray.data.ActorPoolStrategy(size=1),
    num_cpus=1,
)
found = {{row["text"]: row["embedding"].tolist() for row in rows.take_all()}}
open({str(tmp_path / "found.json")!r}, "w").write(json.dumps(found))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], env=clean_environment(), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "found.json").read_text())
    assert [found[text] for text in TEXTS] == EmbedTexts(model)({"text": TEXTS})[
        "embedding"
    ].tolist()


def told_rows(caplog: pytest.LogCaptureFixture, what: str) -> list[tuple[int, int, int]]:
    """The part, its first row and the end, in order."""
    found: Any = [record.args for record in caplog.records if record.msg.endswith(f"are {what}")]
    return list(found)


def workers_of(folder: str) -> list[int]:
    """The processes that hold a worker, of a Ray in this folder."""
    parents, names = {}, {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            status = (process / "stat").read_text()
            names[process.name] = (process / "cmdline").read_bytes()
        except OSError:
            continue  # it has ended
        parents[process.name] = status.rpartition(")")[2].split()[1]
    return [
        int(process)
        for process, name in names.items()
        if name.startswith(b"ray::Worker")
        and folder.encode() in names.get(parents[process], b"")  # the raylet
    ]
