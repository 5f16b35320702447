"""`lln embed` by workers on Ray: the bytes of one process, whatever is killed; what is refused."""

from __future__ import annotations

import ast
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

from lln.ray_data import EmbedTexts
from service.cli.__main__ import main
from tests.service.processes import clean_environment, lln

TEXTS = ("the quick brown fox", "seven wizards box", "attention over long documents")
# A process of its own, not forked from one with torch: Ray does not start in those.
LLN = (sys.executable, "-m", "service.cli")
ROWS = 1_200  # three parts


@pytest.fixture
def temporary() -> Iterator[str]:
    """A folder with a short path: Ray keeps sockets in it."""
    pytest.importorskip("ray")
    with tempfile.TemporaryDirectory(prefix="lln-") as folder:
        yield folder


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
    temporary: str, corpus: Path, model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, alone = tmp_path / "out.parquet", tmp_path / "alone.parquet"
    arguments = ["embed", "--from", str(corpus), "--model", model, "--keep", "year", "--json"]
    process = subprocess.Popen(
        [*LLN, *arguments, "--out", str(out), "--ray", "--workers", "1"],
        env=clean_environment(TMPDIR=temporary),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    claimed = tmp_path / "out.parquet.partial" / "job.json"
    while process.poll() is None and not claimed.exists():
        time.sleep(0.01)
    assert claimed.exists(), process.communicate()
    [worker] = workers_of(temporary)
    os.kill(worker, signal.SIGKILL)
    printed, complained = process.communicate(timeout=300)
    assert process.returncode == 0, complained
    assert json.loads(printed)["vectors"] == ROWS - 4
    for name in [name for name in os.environ if name.startswith("LLN_")]:
        monkeypatch.delenv(name)
    assert main([*arguments, "--out", str(alone)]) == 0
    assert out.read_bytes() == alone.read_bytes()
    bad = (tmp_path / "alone.parquet.bad.jsonl").read_bytes()
    assert (tmp_path / "out.parquet.bad.jsonl").read_bytes() == bad


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (
            ["--worker-gpus", "1", "--workers", "64"],
            "64 workers of 1 GPU need 64, and this machine",
        ),
        (["--worker-cpus", "999"], "1 worker of 999 CPU needs 999, and this machine has"),
        (["--model", "no/such-model"], "model 'no/such-model' was not found"),
    ],
)
def test_what_the_workers_lack_is_told_before_work_starts(
    temporary: str, corpus: Path, tmp_path: Path, options: list[str], complaint: str
) -> None:
    out = tmp_path / "out.npy"
    done = subprocess.run(
        [*LLN, "embed", "--from", str(corpus), "--out", str(out), "--ray", *options],
        env=clean_environment(TMPDIR=temporary, HF_HUB_OFFLINE="1"),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert complaint in done.stderr
    assert not list(tmp_path.glob("out.npy.partial/*.jsonl"))
    assert not list(Path(temporary).iterdir()), "Ray leaves nothing"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_pipeline_of_ray_data_has_the_vectors_of_the_engine(temporary: str, model: str) -> None:
    program = f"""
import ray
from lln.ray_data import EmbedTexts

ray.init(num_cpus=2, object_store_memory=100 * 2**20, _temp_dir={temporary!r})
rows = ray.data.from_items([{{"text": text}} for text in {TEXTS!r}])
rows = rows.map_batches(
    EmbedTexts,
    fn_constructor_args=[{model!r}],
    compute=ray.data.ActorPoolStrategy(size=1),
    num_cpus=1,
)
print({{row["text"]: row["embedding"].tolist() for row in rows.take_all()}})
"""
    done = subprocess.run(
        [sys.executable, "-c", program], env=clean_environment(), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    found = ast.literal_eval(done.stdout.splitlines()[-1])
    assert [found[text] for text in TEXTS] == EmbedTexts(model)({"text": TEXTS})[
        "embedding"
    ].tolist()


def test_what_is_no_cluster(corpus: Path, tmp_path: Path) -> None:
    pytest.importorskip("ray")
    job = ("embed", "--from", str(corpus), "--out", str(tmp_path / "out.npy"))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    nobody = lln(*job, "--address", f"127.0.0.1:{port}")
    assert f"no Ray cluster answers at 127.0.0.1:{port}" in nobody.stderr
    assert "must be HOST:PORT" in lln(*job, "--address", "here").stderr
    assert "--workers needs --ray or --address" in lln(*job, "--workers", "2").stderr


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
