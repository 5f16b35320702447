"""Ranks that find each other, read together, are lost, and are refused.

Most ranks are threads of this process: they do all that processes do but end. One test kills a
process.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace

import numpy as np
import pytest

from engine.config import EngineConfig
from engine.engine import Engine
from engine.errors import (
    CheckpointError,
    DeviceFailure,
    EngineUnavailable,
    InvalidInput,
    RankLost,
)
from engine.execution.inputs import PreparedText
from engine.execution.model_runner import TiledRun
from engine.model.embedding_model import EmbeddingModel
from engine.ranks.fleet import Fleet, _ranks_here
from engine.ranks.launcher import ElsewhereStarted
from engine.ranks.local import places_here
from engine.ranks.place import RankPlace, check_devices
from engine.ranks.stretch_run import RankRun
from engine.ranks.worker import serve_rank
from engine.types import ChunkPlan, Vector
from tests.engine.ranks.rank_threads import (
    RankThread,
    eventually,
    some_text,
    starting,
)

NUM_RANKS = 3
TOLERANCE = 2e-6
CONFIG = EngineConfig(
    device="cpu", ranks=NUM_RANKS, num_threads=1, min_rank_tokens=1, rank_start_s=60
)


@contextmanager
def together(model: EmbeddingModel, num_ranks: int = NUM_RANKS) -> Iterator[Fleet]:
    first, *others = places_here(num_ranks)
    threads = [RankThread(place) for place in others]
    fleet = Fleet([model], CONFIG, ElsewhereStarted(first))
    fleet.start()
    try:
        yield fleet
    finally:
        fleet.stop()
        for thread in threads:
            thread.join(30)


@pytest.fixture(scope="module")
def fleet(default_model: EmbeddingModel) -> Iterator[Fleet]:
    with together(default_model) as fleet:
        yield fleet


def opened(fleet: Fleet, model: EmbeddingModel, text: PreparedText) -> RankRun:
    runs: list[RankRun] = []

    def try_open() -> bool:
        run = fleet.try_open(model, text, keep_projections=True)
        runs.extend([run] if run is not None else [])
        return run is not None

    eventually(try_open)
    return runs[0]


def result_of(run: RankRun | TiledRun) -> Vector:
    with closing(run):
        while run.result is None:
            run.step()
    directions: Vector = run.result / np.linalg.norm(run.result, axis=1, keepdims=True)
    return directions


@pytest.mark.parametrize("length", [1, 513, 1_700])
def test_ranks_give_the_answer_of_one(
    length: int, fleet: Fleet, default_model: EmbeddingModel
) -> None:
    text = some_text(length)
    run = opened(fleet, default_model, text)
    assert run.num_ranks == NUM_RANKS
    apart = result_of(run)
    assert np.abs(apart - result_of(TiledRun(default_model, text))).max() < TOLERANCE
    again = result_of(opened(fleet, default_model, text))
    assert np.array_equal(apart, again), "the order of the ranks decides, not who is first"


def test_bytes_do_not_grow_with_the_length(fleet: Fleet, default_model: EmbeddingModel) -> None:
    sent = []
    for length in (600, 2_000):
        before = fleet.bytes_sent
        result_of(opened(fleet, default_model, some_text(length)))
        sent.append(fleet.bytes_sent - before)
    assert sent[0] == sent[1] > 0


def test_one_text_at_a_time_and_one_given_up_leaves_room(
    fleet: Fleet, default_model: EmbeddingModel
) -> None:
    run = opened(fleet, default_model, some_text(1_700))
    run.step()
    assert fleet.try_open(default_model, some_text(600), keep_projections=True) is None
    run.close()
    text = some_text(1_100)
    apart = result_of(opened(fleet, default_model, text))
    assert np.abs(apart - result_of(TiledRun(default_model, text))).max() < TOLERANCE


@pytest.mark.long
def test_a_rank_that_is_killed_fails_its_text_only(
    default_model: EmbeddingModel, long_text: str
) -> None:
    text, chunks = long_text[:4_000], ChunkPlan(tokens=128)
    config = EngineConfig(
        device="cpu", ranks=2, num_threads=1, min_rank_tokens=600, min_sweep_tokens=600
    )
    alone = Engine(default_model).embed_document(text, chunks=chunks)
    with Engine(default_model, config=config) as engine:
        fleet = engine.fleet
        assert fleet is not None
        assert engine.plan(1_000_000).ranks == 2
        apart = engine.embed_document(text, chunks=chunks)
        assert np.abs(apart.vector - alone.vector).max() < TOLERANCE
        run = opened(fleet, default_model, some_text(15_000))
        run.step()
        os.kill(fleet.process_ids()[1], signal.SIGKILL)
        with pytest.raises(RankLost, match="Rank 1 of 2") as lost:
            result_of(run)
        assert (lost.value.limit, lost.value.actual) == (2, 1)
        eventually(lambda: fleet.num_present == 1)
        left = engine.embed_document(text, chunks=chunks)
        assert np.abs(left.vector - alone.vector).max() < TOLERANCE
        eventually(lambda: fleet.num_present == 2)  # it was started again
        os.kill(fleet.process_ids()[1], signal.SIGKILL)  # between two texts
        eventually(lambda: fleet.num_present == 1)


@pytest.mark.slow
def test_a_rank_that_hangs_is_lost_after_its_time(default_model: EmbeddingModel) -> None:
    config = EngineConfig(device="cpu", ranks=2, num_threads=1, min_rank_tokens=1, rank_timeout_s=4)
    with Engine(default_model, config=config) as engine:
        fleet = engine.fleet
        assert fleet is not None
        run = opened(fleet, default_model, some_text(60_000))
        os.kill(fleet.process_ids()[1], signal.SIGSTOP)
        with pytest.raises(RankLost, match="it said nothing for 4 s"):
            result_of(run)
        eventually(lambda: fleet.num_present == 2)


def test_a_rank_that_fails_says_why(fleet: Fleet, default_model: EmbeddingModel) -> None:
    text = some_text(1_700)
    text.ids[-1] = 1_000_000  # no row of the table of words
    with pytest.raises(DeviceFailure, match="IndexError"):
        result_of(opened(fleet, default_model, text))
    assert result_of(opened(fleet, default_model, some_text(600))).shape == (4, 384)


def test_a_rank_with_other_weights_is_refused(default_model: EmbeddingModel) -> None:
    first, other = places_here(2)
    thread = RankThread(other)
    assert default_model.calibration is not None
    changed = replace(default_model.calibration, block_size=256)
    with pytest.raises(CheckpointError, match="rank 1 has another default: its calibration"):
        Fleet([default_model.with_calibration(changed)], CONFIG, ElsewhereStarted(first)).start()
    thread.join(30)
    assert thread.error is not None
    assert thread.error.code == "rank_differs"


def test_ranks_of_another_number_are_refused(default_model: EmbeddingModel) -> None:
    first, _ = places_here(2)
    other = RankThread(places_here(5, port=first.port)[3])
    with pytest.raises(InvalidInput, match="started for 5 ranks, the first rank for 2") as refused:
        Fleet([default_model], CONFIG, ElsewhereStarted(first)).start()
    other.join(30)
    assert refused.value.code == "wrong_num_ranks"
    assert other.error is not None
    assert other.error.code == "wrong_num_ranks"


def test_a_rank_with_another_key_is_refused() -> None:
    first, other = places_here(2)
    stranger = RankThread(replace(other, key="another"))
    fleet = Fleet([], CONFIG, ElsewhereStarted(replace(first, key="secret")))
    with starting(fleet) as errors:
        stranger.join(30)
        assert stranger.error is not None
        assert stranger.error.code == "wrong_rank_key"
    assert [error.message for error in errors] == [
        "The engine stopped while it waited for its ranks."
    ]


def test_ranks_that_do_not_come(default_model: EmbeddingModel) -> None:
    first = places_here(3)[0]
    config = EngineConfig(device="cpu", rank_start_s=1)
    with pytest.raises(EngineUnavailable, match="1 of 3 ranks joined within 1 s; missing: 1, 2"):
        Fleet([default_model], config, ElsewhereStarted(first)).start()


def test_a_first_rank_that_cannot_be_reached() -> None:
    place = places_here(2)[1]
    with pytest.raises(EngineUnavailable, match=f"127.0.0.1:{place.port}") as failed:
        serve_rank(place, join_s=1)
    assert failed.value.code == "rank_unreachable"


def test_fewer_gpus_than_ranks() -> None:
    config = EngineConfig(device="cuda", ranks=8)
    with pytest.raises(InvalidInput, match="4 ranks are to run on this machine") as refused:
        check_devices(config, 4, num_gpus=2)
    assert (refused.value.limit, refused.value.actual) == (2, 4)
    check_devices(config, 4, num_gpus=4)


def test_more_ranks_than_cores_are_told_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server checks its devices first, and again where the engine starts the ranks."""
    monkeypatch.setattr("engine.ranks.place.usable_cores", lambda: 2)
    config = EngineConfig(device="cpu", ranks=3)
    check_devices(config, config.ranks)
    _ranks_here(config)
    assert caplog.text.count("more ranks (3) than usable cores (2)") == 1


def test_one_process_without_its_gpu_is_told_nothing_of_ranks() -> None:
    check_devices(EngineConfig(device="cuda"), 1, num_gpus=0)
    with pytest.raises(InvalidInput, match="2 ranks are to run"):
        check_devices(EngineConfig(device="cuda", ranks=2), 2, num_gpus=0)


STATED = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "10.0.0.7", "MASTER_PORT": "29500"}


def test_a_place_is_read_from_the_environment() -> None:
    place = RankPlace.from_environment({**STATED, "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"})
    assert place is not None
    assert (place.rank, place.num_ranks, place.address, place.port) == (1, 2, "10.0.0.7", 29500)
    assert place.as_environment().items() >= STATED.items()
    assert RankPlace.from_environment({**STATED, "RANK": ""}) is None


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("RANK", "2", "RANK must be 0 to 1 where WORLD_SIZE is 2, got 2"),
        ("RANK", "one", "RANK must be a whole number, got 'one'"),
        ("RANK", "-1", "RANK must be 0 to 2147483647, got -1"),
        ("WORLD_SIZE", "0", "WORLD_SIZE must be 1 to 2147483647, got 0"),
        ("LOCAL_WORLD_SIZE", "0", "LOCAL_WORLD_SIZE must be 1 to 2147483647, got 0"),
        ("MASTER_PORT", "http", "MASTER_PORT must be a whole number"),
        ("MASTER_PORT", "99999", "MASTER_PORT must be 0 to 65535, got 99999"),
    ],
)
def test_a_place_that_cannot_be(name: str, value: str, words: str) -> None:
    with pytest.raises(InvalidInput, match=words) as refused:
        RankPlace.from_environment({**STATED, name: value})
    assert refused.value.param == name


def test_an_engine_of_another_number_of_ranks() -> None:
    place = places_here(2)[0]
    assert place.fit(EngineConfig()).ranks == 2
    with pytest.raises(InvalidInput, match="ranks is 3, and the launcher started 2"):
        place.fit(EngineConfig(ranks=3))
