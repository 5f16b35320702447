"""The policy under thousands of random arrivals, on a virtual clock: what it promises, it keeps."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest

from engine.scheduling.queues import service_order
from engine.scheduling.request import Entry, Request, Unit
from engine.scheduling.scheduler import FIRST_UNIT_S, Scheduler

MAX_BATCH_TOKENS = 8_192
MAX_BATCH_SEQUENCES = 64
MAX_SWEEP_BYTES = 3_000
LONG_SHARE = 0.25
TOKENS_PER_S = 5_000
TILE_TOKENS = 170  # a tile of one layer, in tokens of the whole model
TILE_S = TILE_TOKENS / TOKENS_PER_S
CALL_S = 0.5


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    """Where futures come from; it never runs."""
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


@dataclass
class Served:
    """One entry, and what became of it."""

    entry: Entry
    tiles_left: int = 0
    started_at: float | None = None
    ended_at: float | None = None


@dataclass
class Simulation:
    """A device on a virtual clock, arrivals at random, and every promise checked at every turn."""

    loop: asyncio.AbstractEventLoop
    seed: int
    load: float
    """Work that arrives, of what the device can do."""
    duration_s: float = 400.0
    now: float = 0.0
    spent: dict[str, float] = field(default_factory=lambda: {"short": 0.0, "long": 0.0})

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.scheduler = Scheduler(
            max_batch_tokens=MAX_BATCH_TOKENS,
            max_batch_sequences=MAX_BATCH_SEQUENCES,
            max_queue_tokens=1 << 40,
            max_queue_calls=1 << 40,
            max_sweep_bytes=MAX_SWEEP_BYTES,
            long_share=LONG_SHARE,
        )
        self.entries: dict[Entry, Served] = {}
        self.present: set[Entry] = set()

    def run(self) -> None:
        arrivals = self._arrivals()
        upcoming = next(arrivals, None)
        while upcoming is not None or self.present:
            while upcoming is not None and upcoming[0] <= self.now:
                upcoming[1](upcoming[0])
                upcoming = next(arrivals, None)
            self._caller_leaves()
            unit = self.scheduler.next_unit(self.now)
            if unit is None:
                assert not self._live(), "there was work, and the device stood still"
                if upcoming is None:
                    break
                self.now = upcoming[0]
                continue
            self._check(unit)
            self._serve(unit)
        assert self.scheduler.is_empty

    def _arrivals(self) -> Iterator[tuple[float, Callable[[float], None]]]:
        """Mostly short texts in bursts, some long ones, some calls."""
        at = 0.0
        while at < self.duration_s:
            kind = self.random.choices(["burst", "sweep", "call", "softmax"], [60, 6, 3, 1])[0]
            seconds = {"burst": 0.4, "sweep": 3.0, "call": CALL_S, "softmax": 2.0}[kind]
            at += self.random.expovariate(1.0) * seconds / self.load
            yield at, getattr(self, f"_{kind}")

    def _burst(self, at: float) -> None:
        for _ in range(self.random.choice([1, 1, 1, 5, 20])):
            background = self.random.random() < 0.1
            self._join(
                at,
                tokens=self.random.choice([16, 64, 512, 2_000]),
                priority="background" if background else "normal",
                timeout_s=self.random.choice([None, None, 2.0, 60.0]),
            )

    def _sweep(self, at: float) -> None:
        tokens = int(2 ** self.random.uniform(11, 16))
        self._join(
            at, tokens=tokens, kind="sweep_tile", num_bytes=tokens // 20,
            seconds=tokens / TOKENS_PER_S,
        )  # fmt: skip

    def _softmax(self, at: float) -> None:
        self._join(at, tokens=10_000)

    def _call(self, at: float) -> None:
        self._join(at, tokens=0, kind="diagnosis")

    def _join(self, at: float, *, timeout_s: float | None = None, **fields: object) -> None:
        request = Request(
            model=self.random.choice("ab"),
            payload=None,
            **fields,  # type: ignore[arg-type]
        )
        entry = Entry(
            request=request,
            future=self.loop.create_future(),
            enqueued_at=at,
            deadline=None if timeout_s is None else at + timeout_s,
        )
        self.scheduler.add(entry)
        self.entries[entry] = Served(entry, tiles_left=-(-entry.request.tokens // TILE_TOKENS))
        self.present.add(entry)

    def _caller_leaves(self) -> None:
        if self.present and self.random.random() < 0.02:
            leaver = self.random.choice(sorted(self.present, key=lambda entry: entry.number))
            leaver.future.cancel()
        for entry in [entry for entry in self.present if entry.has_departed(self.now)]:
            assert self.scheduler.remove(entry)
            self.present.remove(entry)

    def _live(self) -> list[Entry]:
        return [entry for entry in self.present if not entry.has_departed(self.now)]

    def _check(self, unit: Unit) -> None:
        first, *others = unit.entries
        assert all(not entry.has_departed(self.now) for entry in unit.entries)
        assert all(
            entry.request.model == first.request.model and entry.request.kind == first.request.kind
            for entry in others
        )
        assert set(unit.entries) <= self.present, "served twice, or after it left"
        if others:
            assert unit.tokens <= MAX_BATCH_TOKENS
            assert len(unit.entries) <= MAX_BATCH_SEQUENCES
            assert list(unit.entries) == sorted(unit.entries, key=service_order)
        live = self._live()
        peers = [entry for entry in live if _kind(entry) == _kind(first)]
        if first.request.kind != "sweep_tile":
            assert first is min(peers, key=service_order)
        else:
            self._check_memory(first)
        if _kind(first) != "short":
            short_waits = any(_kind(entry) == "short" for entry in live)
            assert unit.delays_short == short_waits

    def _check_memory(self, chosen: Entry) -> None:
        under_way = [
            entry
            for entry in self.present
            if entry.request.kind == "sweep_tile" and self.entries[entry].started_at
        ]
        held = sum(entry.request.num_bytes for entry in {*under_way, chosen})
        assert held <= MAX_SWEEP_BYTES or {*under_way, chosen} == {chosen}

    def _serve(self, unit: Unit) -> None:
        seconds = _seconds(unit)
        for entry in unit.entries:
            served = self.entries[entry]
            # Never nought, so that it can stand for "has begun".
            served.started_at = served.started_at or self.now + 1e-9
        if self._contended():
            self.spent["long" if _kind(unit.entries[0]) != "short" else "short"] += seconds
        self.now += seconds
        self.scheduler.record(unit, seconds)
        for entry in unit.entries:
            served = self.entries[entry]
            if entry.request.kind == "sweep_tile":
                served.tiles_left -= 1
                if served.tiles_left:
                    continue
                assert self.scheduler.remove(entry)
            served.ended_at = self.now
            self.present.remove(entry)

    def _contended(self) -> bool:
        kinds = {_kind(entry) for entry in self._live()}
        return "short" in kinds and "sweep_tile" in kinds


def _kind(entry: Entry) -> str:
    if entry.request.kind != "batch":
        return entry.request.kind
    return "short" if entry.request.tokens <= MAX_BATCH_TOKENS else "softmax"


def _seconds(unit: Unit) -> float:
    if unit.kind == "sweep_tile":
        return TILE_S
    return CALL_S if unit.kind == "diagnosis" else unit.tokens / TOKENS_PER_S


@pytest.mark.long
@pytest.mark.parametrize(
    ("load", "duration_s"),
    [(0.5, 400.0), (0.9, 400.0), (1.5, 150.0)],  # what waits grows with the time of an overload
)
@pytest.mark.parametrize("seed", range(3))
def test_promises_hold_under_random_arrivals(
    seed: int, load: float, duration_s: float, loop: asyncio.AbstractEventLoop
) -> None:
    simulation = Simulation(loop, seed, load, duration_s)
    simulation.run()
    entries = list(simulation.entries.values())
    assert len(entries) > 500
    for served in entries:
        assert (
            served.ended_at is not None or served.entry.future.cancelled() or served.entry.deadline
        )
    if simulation.spent["short"] > 20:
        share = simulation.spent["long"] / sum(simulation.spent.values())
        # Three kinds of long work have their shares; no more than one unit is ever outstanding.
        assert share <= LONG_SHARE + 0.05


def test_a_sweep_under_a_flood_of_short_work_gets_its_share_and_ends(
    loop: asyncio.AbstractEventLoop,
) -> None:
    """For a minute, twice as much short work comes as the device can do."""
    simulation = Simulation(loop, seed=0, load=1.0)
    simulation._join(0.0, tokens=20_000, kind="sweep_tile", seconds=4.0)
    (sweep,) = simulation.entries
    next_arrival = tile_s = 0.0
    while sweep in simulation.present:
        while next_arrival <= simulation.now:
            simulation._join(next_arrival, tokens=500)
            next_arrival += 0.05
        unit = simulation.scheduler.next_unit(simulation.now)
        assert unit is not None
        tile_s += TILE_S if unit.kind == "sweep_tile" else 0.0
        simulation._serve(unit)
        outstanding = FIRST_UNIT_S + MAX_BATCH_TOKENS / TOKENS_PER_S
        assert tile_s >= LONG_SHARE * (simulation.now - outstanding) - TILE_S
    assert simulation.now <= 4.0 / LONG_SHARE + 3.0


def test_short_texts_wait_for_one_tile_at_most_while_there_is_room(
    loop: asyncio.AbstractEventLoop,
) -> None:
    """One short text a second beside sweeps: each is served next, whatever else waits."""
    simulation = Simulation(loop, seed=0, load=1.0)
    for _ in range(3):
        simulation._join(0.0, tokens=60_000, kind="sweep_tile", num_bytes=10, seconds=12.0)
    waits = []
    next_arrival = 0.0137
    while simulation.now < 20:
        while next_arrival <= simulation.now:
            simulation._join(next_arrival, tokens=64)
            next_arrival += 1.0
        unit = simulation.scheduler.next_unit(simulation.now)
        assert unit is not None
        if unit.kind == "batch":
            waits.append(simulation.now - unit.entries[0].enqueued_at)
        simulation._serve(unit)
    assert len(waits) == 20
    assert max(waits) <= TILE_S
