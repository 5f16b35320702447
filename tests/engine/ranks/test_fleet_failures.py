"""What the first rank does when others hang, leave at a bad moment, or are not ranks at all.

The other ranks are scripts here: they speak the protocol and read nothing.
"""

from __future__ import annotations

import gc
import logging
import socket
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from functools import partial
from multiprocessing.connection import Connection

import pytest
from torch.distributed import HashStore, Store  # type: ignore[attr-defined]

from engine.config import EngineConfig
from engine.errors import DeviceFailure, InvalidInput
from engine.model.embedding_model import EmbeddingModel
from engine.ranks import fleet as fleets
from engine.ranks import group, launcher, worker
from engine.ranks.channel import (
    Channel,
    Failed,
    Form,
    Formed,
    Hello,
    Message,
    Pulse,
    Read,
    Ready,
    Stop,
    Welcome,
)
from engine.ranks.fleet import Fleet
from engine.ranks.group import Group
from engine.ranks.keeper import Keeper
from engine.ranks.launcher import ElsewhereStarted
from engine.ranks.local import LocalRanks, places_here
from engine.ranks.place import RankPlace
from engine.ranks.roster import Forming
from engine.ranks.stretch_run import StretchText
from engine.ranks.worker import CONTACT, RankWorker
from engine.types import Span
from tests.engine.ranks.rank_threads import RankThread, eventually, some_text, starting

CONFIG = EngineConfig(
    device="cpu", num_threads=1, min_rank_tokens=1, rank_start_s=60, rank_timeout_s=2
)


class ScriptedRank(threading.Thread):
    """A rank that joins each group until a test makes it hang. It records every message it gets."""

    def __init__(self, place: RankPlace) -> None:
        super().__init__(daemon=True)
        self.place = place
        self.heard: list[Message] = []
        self.joins = True
        self.hangs, self.is_hung, self.ended = (threading.Event() for _ in range(3))
        self.channel: Channel
        self.start()

    def run(self) -> None:
        store = self.place.open_store(30)
        port, _, key = store.get(CONTACT).decode().partition(" ")
        self.channel = Channel.connect((self.place.address, int(port)), key.encode(), 30)
        self.channel.send(Hello(self.place.rank, self.place.num_ranks))
        with closing(self.channel), suppress(EOFError, OSError):
            self._serve(store)

    def _serve(self, store: Store) -> None:
        pulse, joined = Pulse(self.channel, 0.1), None
        while not self.hangs.is_set():
            message = self.channel.receive(0.05)
            pulse.beat()
            if message is None:
                continue
            self.heard.append(message)
            match message:
                case Stop():
                    return
                case Welcome():
                    self.channel.send(Ready(()))
                case Form(generation, rank, num_ranks):
                    joined = self._group(store, generation, rank, num_ranks)
                    is_joined = joined is not None and self.joins
                    self.channel.send(Formed(generation, is_joined))
        self.is_hung.set()
        self.ended.wait()
        del joined

    def _group(self, store: Store, generation: int, rank: int, num_ranks: int) -> Group | None:
        try:
            return Group(store, generation, rank, num_ranks)
        except RuntimeError:
            return None

    def num_heard(self, kind: type[Message]) -> int:
        return sum(isinstance(message, kind) for message in self.heard)


@contextmanager
def scripted(
    num_ranks: int, make: Callable[[RankPlace], Fleet]
) -> Iterator[tuple[Fleet, list[ScriptedRank]]]:
    first, *others = places_here(num_ranks)
    ranks = [ScriptedRank(place) for place in others]
    fleet = make(first)
    fleet.start()
    try:
        yield fleet, ranks
    finally:
        fleet.stop()
        for rank in ranks:
            rank.ended.set()


def plain_fleet(place: RankPlace) -> Fleet:
    return Fleet([], CONFIG, ElsewhereStarted(place))


def fleet_of(model: EmbeddingModel, place: RankPlace) -> Fleet:
    return Fleet([model], CONFIG, ElsewhereStarted(place))


@pytest.mark.long
def test_a_rank_that_hangs_while_a_group_forms_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    with scripted(3, plain_fleet) as (fleet, (well, hung)):
        monkeypatch.setattr(group, "FORM_S", 0.5)
        hung.hangs.set()
        assert hung.is_hung.wait(10)
        well.channel.send(Ready(()))  # another group is to form
        eventually(lambda: fleet.num_present == 2, within_s=20)


class LosesAConnectionAtABadMoment(Keeper):
    """Loses its connection to the last rank just before it tells the ranks to form a group."""

    is_armed = False

    def _form(self, forming: Forming) -> Group | None:
        if self.is_armed:
            self.is_armed = False
            forming.members[-1].channel.close()
        return super()._form(forming)


@pytest.mark.long
def test_a_rank_that_waits_for_a_group_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was told to join, and another could not be: it waits longer than a rank may be silent."""
    monkeypatch.setattr(fleets, "Keeper", LosesAConnectionAtABadMoment)
    with scripted(3, plain_fleet) as (fleet, (waits, other)):
        keeper = fleet._keeper
        assert isinstance(keeper, LosesAConnectionAtABadMoment)
        monkeypatch.setattr(group, "FORM_S", 1.25 * CONFIG.rank_timeout_s)
        keeper.is_armed = True
        waits.channel.send(Ready(()))  # another group is to form
        eventually(lambda: fleet.num_present == 1)
        eventually(lambda: fleet.num_present == 2, within_s=20)
        assert waits.num_heard(Form) == 3, "the first of all, one that did not form, one of two"
        assert waits.is_alive()
        assert not other.is_alive()


class IsBusyOnce(Keeper):
    """Sends to a rank that does not read, for longer than a rank may be silent."""

    is_armed = was_busy = False

    def _send_parts(self) -> None:
        super()._send_parts()
        if self.is_armed and not self.was_busy:
            time.sleep(1.2 * CONFIG.rank_timeout_s)
            self.was_busy = True


@pytest.mark.long
def test_a_rank_that_was_not_heard_is_not_silent(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleets, "Keeper", IsBusyOnce)
    with scripted(2, plain_fleet) as (fleet, (rank,)):
        keeper = fleet._keeper
        assert isinstance(keeper, IsBusyOnce)
        keeper.is_armed = True
        eventually(lambda: keeper.was_busy)
        time.sleep(0.4)
        assert rank.is_alive()
        assert fleet.num_present == 2
    assert "is lost" not in caplog.text


def test_a_time_in_which_no_rank_could_answer_is_refused() -> None:
    with pytest.raises(InvalidInput, match="rank_timeout_s must be at least 2, got") as found:
        EngineConfig(rank_timeout_s=1.5)
    assert (found.value.param, found.value.limit, found.value.actual) == ("rank_timeout_s", 2, 1.5)


def test_a_group_that_a_rank_could_not_join_forms_anew() -> None:
    with scripted(2, plain_fleet) as (_, (rank,)):
        eventually(lambda: rank.num_heard(Form) == 1)
        rank.joins = False
        rank.channel.send(Ready(()))
        eventually(lambda: rank.num_heard(Form) > 2, within_s=20)


class GivesUpAtABadMoment(Keeper):
    """Opens a text and gives it up after the parts were sent, before a group is formed."""

    model: EmbeddingModel
    of: Fleet
    gave_up = False
    is_armed = False

    def _drop_the_silent(self) -> None:
        super()._drop_the_silent()
        if self.is_armed and not self.gave_up:
            run = self.of.try_open(self.model, some_text(1_100), keep_projections=False)
            assert run is not None
            run.close()
            self.gave_up = True


def test_no_rank_reads_for_a_text_that_was_given_up(
    default_model: EmbeddingModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleets, "Keeper", GivesUpAtABadMoment)
    with scripted(2, partial(fleet_of, default_model)) as (fleet, (rank,)):
        keeper = fleet._keeper
        assert isinstance(keeper, GivesUpAtABadMoment)
        keeper.model, keeper.of = default_model, fleet
        keeper.is_armed = True
        eventually(lambda: keeper.gave_up and rank.num_heard(Form) == 2)
        eventually(lambda: fleet.num_present == 2)
        keeper.awaken()
        time.sleep(0.5)
        assert rank.num_heard(Read) == 0


def test_a_text_that_is_opened_as_a_rank_is_lost(default_model: EmbeddingModel) -> None:
    """It is read alone, or fails as any other that loses a rank."""
    found: list[object] = []

    class Opens(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "is lost" in record.getMessage():
                try:
                    run = fleet.try_open(default_model, some_text(1_100), keep_projections=False)
                    found.append(run)
                except Exception as error:
                    found.append(error)

    handler = Opens()
    log = logging.getLogger("engine.ranks.keeper")
    with scripted(2, partial(fleet_of, default_model)) as (fleet, (rank,)):
        log.addHandler(handler)
        try:
            rank.channel.close()
            eventually(lambda: found)
        finally:
            log.removeHandler(handler)
    assert found == [None]


def test_a_stranger_that_says_nothing_holds_up_nobody() -> None:
    first, other = places_here(2)
    fleet = Fleet([], CONFIG, ElsewhereStarted(first))
    with starting(fleet):
        port = int(other.open_store(30).get(CONTACT).decode().partition(" ")[0])
        with socket.create_connection((first.address, port)):
            ScriptedRank(other)
            eventually(lambda: fleet.num_present == 2, within_s=20)


def test_a_start_ends_when_it_is_stopped() -> None:
    fleet = Fleet([], CONFIG, ElsewhereStarted(places_here(2)[0]))
    with starting(fleet) as errors:
        time.sleep(0.3)
        assert not errors
    assert [error.code for error in errors] == ["unavailable"]


def test_a_rank_that_cannot_load_says_why(
    default_model: EmbeddingModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise RuntimeError("CUDA error: no kernel image is available")

    monkeypatch.setattr(worker, "load_models", fails)
    first, other = places_here(2)
    rank = RankThread(other)
    with pytest.raises(DeviceFailure, match="RuntimeError"):
        Fleet([default_model], CONFIG, ElsewhereStarted(first)).start()
    rank.join(30)
    assert isinstance(rank.error, DeviceFailure)


def test_a_rank_that_is_in_no_group_says_so() -> None:
    ends = socket.socketpair()
    first, other = (Channel(Connection(end.detach())) for end in ends)
    whole = some_text(1)
    stretch = StretchText(**vars(whole), rank=0, stretches=(Span(0, 1),), pools=(), gathered_rows=0)
    RankWorker(places_here(2)[1], HashStore(), other)._do(Read(7, "default", stretch, False))
    answer = first.receive(5)
    assert isinstance(answer, Failed)
    assert (answer.error.code, answer.reading) == ("rank_lost", 7)


def test_a_process_that_ends_at_once_is_started_less_and_less_often(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(launcher, "_RESTART_S", 0.05)
    monkeypatch.setattr(sys, "executable", "/bin/false")
    processes = LocalRanks(2)
    place = processes.first_place()
    processes.start(place)
    seen = set()
    ends_at = time.monotonic() + 1
    while time.monotonic() < ends_at:
        seen.add(processes.process_ids()[1])
        for rank, _ in processes.ended():
            processes.restart(rank, place)
        time.sleep(0.01)
    assert 1 < len(seen) <= 6, "not every 0.05 s"
    processes.stop()
    processes.start(place)
    assert not processes.process_ids(), "nothing starts after a stop"


def test_nothing_is_left_of_a_fleet_that_stopped() -> None:
    with scripted(2, plain_fleet) as (fleet, _):
        left = weakref.ref(fleet)
    del fleet

    def is_freed() -> bool:
        gc.collect()
        return left() is None

    eventually(is_freed, within_s=8)
