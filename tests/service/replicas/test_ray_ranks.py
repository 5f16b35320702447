"""`lln serve --ranks`: a Ray cluster reads long documents along, and what is refused."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest

from engine.config import EngineConfig
from engine.engine import Engine
from engine.errors import InvalidInput
from service.ranks.options import RankOptions
from service.ranks.run import fitted
from tests.service.processes import lln
from tests.service.replicas.ray_servers import (
    Served,
    run_lln,
    serving,
)

pytestmark = pytest.mark.long

RANK = "_be_rank"
TEXT = "Two machines read one document, each its own half of it. " * 40
TOLERANCE = 2e-6
REFUSED = 1


@pytest.fixture(scope="module")
def served(ray_folder: Path, ray_address: str, ray_model: str) -> Iterator[Served]:
    options = ("--ranks", "2", "--address", ray_address)
    with serving(ray_folder, ray_model, *options, LLN_ENGINE__MIN_RANK_TOKENS="64") as running:
        yield running


def test_a_document_is_read_by_all_ranks(served: Served, ray_model: str) -> None:
    with Engine.load(ray_model) as engine:
        alone = engine.embed_document(TEXT)
    with httpx.Client(base_url=served.url, timeout=60) as http:
        assert http.post("/v1/plan", json={"text": TEXT}).json()["ranks"] == 2
        found = http.post("/v1/documents", json={"text": TEXT}).json()
    assert np.abs(np.array(found["vector"]) - alone.vector).max() < TOLERANCE


def test_a_rank_that_dies_is_started_again(served: Served) -> None:
    (before,) = served.processes(RANK)
    os.kill(before, signal.SIGKILL)
    with httpx.Client(base_url=served.url, timeout=60) as http:
        _await_ranks(http, 1)
        http.post("/v1/documents", json={"text": TEXT}).raise_for_status()  # rank 0 reads alone
        _await_ranks(http, 2)
        http.post("/v1/documents", json={"text": TEXT}).raise_for_status()
    (after,) = served.processes(RANK)
    assert after != before


def test_a_cluster_whose_cores_are_taken(served: Served, ray_address: str) -> None:
    started_at = time.monotonic()
    options = ("--ranks", "2", "--address", ray_address)
    refused = run_lln("serve", *options, LLN_ENGINE__RANK_START_S="1")
    assert refused.returncode == REFUSED
    assert "made no room for 2 ranks of 1 CPU within 1 s" in refused.stderr
    assert "0 CPU are free" in refused.stderr
    assert time.monotonic() - started_at < 30
    assert served.process.poll() is None


def test_a_cluster_that_is_too_small(ray_address: str) -> None:
    refused = run_lln("serve", "--ranks", "3", "--address", ray_address)
    assert refused.returncode == REFUSED
    assert "3 ranks of 1 CPU need 3, and the cluster has 2: lower --ranks or --rank-cpus" in (
        refused.stderr
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--ranks", "2"), "--ranks needs --address; for ranks on this machine alone set"),
        (("--ranks", "1", "--address", "x:1"), "--ranks must be at least 2, got 1"),
        (("--ranks", "2", "--replicas", "2", "--address", "x:1"), "does not go with --replicas"),
        (("--rank-gpus", "1"), "--rank-gpus needs --ranks"),
    ],
)
def test_options_of_ranks_that_do_not_fit(arguments: tuple[str, ...], message: str) -> None:
    refused = lln("serve", *arguments, LLN_MODELS="default")
    assert refused.returncode == REFUSED
    assert message in refused.stderr


def test_the_first_rank_takes_the_cores_and_the_gpu_that_the_cluster_gives_it() -> None:
    options = RankOptions(ranks=3, cpus=4, gpus=1)
    found = fitted(EngineConfig(), options, gpu=5)
    assert (found.ranks, found.num_threads, found.device) == (3, 4, "cuda:5")
    found = fitted(EngineConfig(device="cpu", num_threads=2, ranks=3), options, gpu=5)
    assert (found.ranks, found.num_threads, found.device) == (3, 2, "cpu")
    with pytest.raises(InvalidInput, match="LLN_ENGINE__RANKS is 2, and --ranks 3"):
        fitted(EngineConfig(ranks=2), options, gpu=None)


def _await_ranks(http: httpx.Client, wanted: int) -> None:
    ends_at = time.monotonic() + 60
    while (ranks := http.get("/health/ready").json()["ranks"])["present"] != wanted:
        assert time.monotonic() < ends_at, ranks
        time.sleep(0.05)
