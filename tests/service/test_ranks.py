"""`lln serve` with ranks: long documents over two processes, and one of them killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import grpc
import httpx
import numpy as np
import pytest

from service.pb.lln.v1 import embeddings_pb2 as pb
from tests.service.outside import free_port, metric, wait_for
from tests.service.processes import clean_environment
from tests.service.stubs import embeddings_stub

pytestmark = pytest.mark.long

MANUAL = "\n\n".join(topics.values())
DOCUMENT = MANUAL[:5_000]  # some 1,100 tokens, in stretches of 512 and more
LONG = MANUAL[:160_000]  # some 36,000 tokens: many seconds on one core
TILES = 'lln_units_total{kind="sweep_tile"}'
RANKS = {"LLN_ENGINE__MIN_RANK_TOKENS": "600", "LLN_ENGINE__MIN_SWEEP_TOKENS": "600"}


@pytest.fixture(scope="module")
def ranked(launch_server: Any) -> Any:
    return launch_server(LLN_MODELS="default", LLN_ENGINE__RANKS="2", **RANKS)


def document(url: str, text: str) -> httpx.Response:
    body = {"text": text, "chunking": {"type": "fixed", "tokens": 256, "context": "late"}}
    return httpx.post(f"{url}/v1/documents", json=body, timeout=120)


def other_rank(server: Any) -> int:
    """The process that the server started."""
    threads = Path(f"/proc/{server.process.pid}/task").glob("*/children")
    children = [int(child) for thread in threads for child in thread.read_text().split()]
    commands = {child: Path(f"/proc/{child}/cmdline").read_text() for child in children}
    (rank,) = [child for child, command in commands.items() if "engine.ranks.worker" in command]
    return rank


def is_whole(server: Any) -> bool:
    ranks: dict[str, int] = httpx.get(f"{server.http_url}/info").json()["ranks"]
    return ranks == {"asked": 2, "present": 2}


def kill_while_reading(server: Any) -> None:
    """Once both ranks read, and a short text was answered meanwhile."""
    before = metric(server.http_url, TILES)
    wait_for(lambda: metric(server.http_url, TILES) > before + 3, "the document to begin")
    short = httpx.post(f"{server.http_url}/v1/embeddings", json={"input": "x"}, timeout=30)
    assert short.status_code == 200
    os.kill(other_rank(server), signal.SIGKILL)


def test_a_document_over_ranks_and_one_whose_rank_is_killed(ranked: Any, http: Any) -> None:
    url = ranked.http_url
    assert is_whole(ranked)
    assert httpx.post(f"{url}/v1/plan", json={"tokens": 100_000}).json()["ranks"] == 2
    apart, alone = (document(one, DOCUMENT).json() for one in (url, str(http.base_url)))
    assert np.abs(np.array(apart["vector"]) - np.array(alone["vector"])).max() < 2e-6
    for one, other in zip(apart["chunks"], alone["chunks"], strict=True):
        assert np.abs(np.array(one["vector"]) - np.array(other["vector"])).max() < 2e-6

    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(document, url, LONG)
        kill_while_reading(ranked)
        answer = asked.result()
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "rank_lost")
    assert httpx.get(f"{url}/health/ready").status_code == 200
    assert metric(url, "lln_ranks_lost_total") == 1
    assert document(url, DOCUMENT).json()["vector"] == pytest.approx(alone["vector"], abs=2e-6)


@pytest.mark.slow
def test_a_rank_killed_under_a_grpc_call_comes_back(ranked: Any) -> None:
    wait_for(lambda: is_whole(ranked), "the rank that was killed before")
    with grpc.insecure_channel(ranked.grpc_address) as channel, ThreadPoolExecutor(1) as pool:
        options = pb.DocumentOptions(model="default")
        pieces = [LONG[at : at + 100_000].encode() for at in range(0, len(LONG), 100_000)]
        messages = [
            pb.EmbedDocumentRequest(open=options),
            *(pb.EmbedDocumentRequest(text=piece) for piece in pieces),
        ]
        call = embeddings_stub(channel).EmbedDocument(iter(messages))
        asked = pool.submit(lambda: list(call))
        kill_while_reading(ranked)
        with pytest.raises(grpc.RpcError) as failed:
            asked.result()
    error: Any = failed.value
    assert error.code() is grpc.StatusCode.UNAVAILABLE
    assert dict(error.trailing_metadata())["lln-error-code"] == "rank_lost"
    wait_for(lambda: is_whole(ranked), "the rank to be started again")


@pytest.mark.slow
def test_torchrun_starts_the_ranks(tmp_path: Path, http: Any) -> None:
    http_port = free_port()
    environment = clean_environment(
        LLN_MODELS="default",
        LLN_HTTP_PORT=str(http_port),
        LLN_GRPC_PORT=str(free_port()),
        LLN_BATCH_FOLDER="",
        **RANKS,
    )
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    command += ["--master-port", str(free_port()), "-m", "service.cli", "serve"]
    url = f"http://127.0.0.1:{http_port}"

    def is_ready() -> bool:
        try:
            ready = httpx.get(f"{url}/health/ready", timeout=5)
        except httpx.TransportError:
            return False
        return ready.status_code == 200 and ready.json()["ranks"] == {"asked": 2, "present": 2}

    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
    try:
        wait_for(is_ready, "the ranks that torchrun started", 120)
        apart, alone = (document(one, DOCUMENT).json() for one in (url, str(http.base_url)))
        assert apart["vector"] == pytest.approx(alone["vector"], abs=2e-6)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)
