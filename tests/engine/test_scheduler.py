"""The policy, with a clock that the tests turn: examples first, then random arrivals."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from engine.scheduler import Job, Scheduler, Unit

MAX_BATCH_TOKENS = 100
MAX_BATCH_SEQUENCES = 4
MAX_QUEUE_TOKENS = 1_000
MAX_QUEUE_CALLS = 3
MAX_UNITS_BEFORE_CALL = 5


def new_scheduler() -> Scheduler:
    return Scheduler(
        max_batch_tokens=MAX_BATCH_TOKENS,
        max_batch_sequences=MAX_BATCH_SEQUENCES,
        max_queue_tokens=MAX_QUEUE_TOKENS,
        max_queue_calls=MAX_QUEUE_CALLS,
        max_units_before_call=MAX_UNITS_BEFORE_CALL,
    )


@dataclass
class Line:
    """A scheduler, and futures for what joins it."""

    scheduler: Scheduler = field(default_factory=new_scheduler)
    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.new_event_loop)
    now: float = 0.0

    def add(
        self,
        tokens: int,
        *,
        model: str = "a",
        kind: Literal["batch", "diagnosis"] = "batch",
        timeout_s: float | None = None,
    ) -> Job:
        job = Job(
            model=model,
            tokens=tokens,
            payload=None,
            future=self.loop.create_future(),
            enqueued_at=self.now,
            deadline=None if timeout_s is None else self.now + timeout_s,
            kind=kind,
        )
        self.scheduler.add(job)
        return job

    def call(self) -> Job:
        return self.add(0, model="", kind="diagnosis")

    def serve(self) -> list[Job]:
        unit = self.scheduler.next_unit(self.now)
        return [] if unit is None else list(unit.jobs)

    def serve_all(self) -> list[list[Job]]:
        return list(iter(self.serve, []))


@pytest.fixture
def line() -> Iterator[Line]:
    line = Line()
    yield line
    line.loop.close()


def test_nothing_waits(line: Line) -> None:
    assert line.scheduler.next_unit(0.0) is None
    assert line.scheduler.is_empty


def test_a_batch_fills_in_order_up_to_the_token_budget(line: Line) -> None:
    a, b, c, d = (line.add(tokens) for tokens in (60, 40, 70, 10))
    assert line.scheduler.waiting_tokens == 180
    assert line.serve_all() == [[a, b], [c, d]]
    assert line.scheduler.waiting_tokens == 0


def test_a_job_that_does_not_fit_is_not_overtaken(line: Line) -> None:
    a, b, c = (line.add(tokens) for tokens in (60, 41, 10))
    assert line.serve_all() == [[a], [b, c]]


def test_a_batch_holds_a_bounded_number_of_sequences(line: Line) -> None:
    jobs = [line.add(1) for _ in range(MAX_BATCH_SEQUENCES + 1)]
    assert line.serve_all() == [jobs[:-1], jobs[-1:]]


def test_a_unit_has_one_model_and_the_oldest_job_chooses_it(line: Line) -> None:
    a1, b1, a2, b2 = (line.add(10, model=model) for model in "abab")
    assert line.serve_all() == [[a1, a2], [b1, b2]]


def test_jobs_over_the_budget_run_alone_in_turn_with_batches(line: Line) -> None:
    long = [line.add(500) for _ in range(2)]
    short = [line.add(60) for _ in range(3)]
    assert line.serve_all() == [[short[0]], [long[0]], [short[1]], [long[1]], [short[2]]]


def test_a_lane_that_was_empty_does_not_owe_a_turn(line: Line) -> None:
    line.add(500), line.add(501)
    assert [job.tokens for unit in line.serve_all() for job in unit] == [500, 501]
    line.add(502), line.add(50)
    assert [job.tokens for unit in line.serve_all() for job in unit] == [50, 502]


def test_departed_jobs_are_passed_over(line: Line) -> None:
    cancelled, late, alive = line.add(10), line.add(10, timeout_s=1.0), line.add(10)
    cancelled.future.cancel()
    line.now = 1.0
    assert line.serve() == [alive]
    assert line.serve() == []
    assert line.scheduler.num_waiting == 2, "they stay until someone answers them"
    assert line.scheduler.remove(cancelled)
    assert line.scheduler.remove(late)
    assert line.scheduler.is_empty


def test_a_job_is_served_up_to_its_deadline(line: Line) -> None:
    job = line.add(10, timeout_s=1.0)
    line.now = 0.999
    assert line.serve() == [job]


def test_a_model_whose_jobs_all_left_does_not_hide_another(line: Line) -> None:
    line.add(10, model="a").future.cancel()
    alive = line.add(10, model="b")
    assert line.serve() == [alive]


def test_remove_says_whether_the_job_still_waited(line: Line) -> None:
    gone, served = line.add(500), line.add(10)
    assert line.scheduler.remove(gone)
    assert not line.scheduler.remove(gone)
    assert line.serve() == [served]
    assert not line.scheduler.remove(served)
    assert line.scheduler.waiting_tokens == 0


def test_remove_all_gives_everything_back_in_order(line: Line) -> None:
    jobs = [line.add(10), line.call(), line.add(500), line.add(10, model="b")]
    assert line.scheduler.remove_all() == jobs
    assert line.scheduler.is_empty
    assert line.serve() == []


def test_a_full_queue_takes_no_more(line: Line) -> None:
    line.add(900)
    assert line.scheduler.can_add(100)
    assert not line.scheduler.can_add(101)


def test_an_empty_queue_takes_work_of_any_size(line: Line) -> None:
    assert line.scheduler.can_add(MAX_QUEUE_TOKENS * 10)
    line.add(MAX_QUEUE_TOKENS * 10)
    assert not line.scheduler.can_add(1)


def test_calls_have_a_limit_of_their_own(line: Line) -> None:
    line.add(MAX_QUEUE_TOKENS)
    for _ in range(MAX_QUEUE_CALLS):
        assert line.scheduler.can_add_call()
        line.call()
    assert not line.scheduler.can_add_call()


def test_a_call_runs_when_no_text_waits(line: Line) -> None:
    calls = [line.call(), line.call()]
    texts = [line.add(60), line.add(60)]
    assert line.serve_all() == [[texts[0]], [texts[1]], [calls[0]], [calls[1]]]


def test_a_call_waits_for_a_bounded_number_of_units_under_constant_load(line: Line) -> None:
    first, second = line.call(), line.call()
    served: list[Job] = []
    while not (first in served and second in served):
        line.add(100), line.add(500)
        served += line.serve()
    assert served.index(first) == MAX_UNITS_BEFORE_CALL
    assert served.index(second) == 2 * MAX_UNITS_BEFORE_CALL + 1


def test_units_that_ran_before_a_call_came_do_not_count(line: Line) -> None:
    for _ in range(10 * MAX_UNITS_BEFORE_CALL):
        line.add(100)
        line.serve()
    call, text = line.call(), line.add(100)
    assert line.serve_all() == [[text], [call]]


def test_a_unit_splits_into_units_of_one_job(line: Line) -> None:
    jobs = (line.add(10), line.add(20))
    unit = Unit(jobs)
    assert (unit.tokens, unit.kind, unit.model) == (30, "batch", "a")
    assert [single.jobs for single in unit.singly()] == [(jobs[0],), (jobs[1],)]


TextTokens = st.one_of(st.integers(1, 60), st.integers(90, 110), st.integers(1, 1_500))
LaneName = Literal["short", "long", "call"]


def lane_of(job: Job) -> LaneName:
    if job.kind != "batch":
        return "call"
    return "short" if job.tokens <= MAX_BATCH_TOKENS else "long"


class Arrivals(RuleBasedStateMachine):
    """Random arrivals, departures and turns, against a plain list of who waits."""

    def __init__(self) -> None:
        super().__init__()
        self.line = Line()
        self.waiting: list[Job] = []
        self.patience: dict[int, int] = {}  # units that may still go past each waiting job
        self.last_text_lane: LaneName | None = None
        self.units_past_call = 0

    def teardown(self) -> None:
        while any(not job.has_departed(self.line.now) for job in self.waiting):
            self.serve()
        for job in list(self.waiting):
            self.bury(job)
        assert self.line.scheduler.is_empty
        self.line.loop.close()

    def live(self, lane: LaneName | None = None) -> list[Job]:
        now = self.line.now
        jobs = [job for job in self.waiting if not job.has_departed(now)]
        return [job for job in jobs if lane in (None, lane_of(job))]

    def join(self, job: Job) -> None:
        ahead = len([other for other in self.waiting if lane_of(other) == lane_of(job)])
        self.waiting.append(job)
        turns = ahead + 1
        if job.kind == "batch":
            # A turn of the other lane for each of ours, and now and then a call.
            units = 2 * turns + 1
            self.patience[job.number] = units + units // MAX_UNITS_BEFORE_CALL + 1
        else:
            self.patience[job.number] = turns * (MAX_UNITS_BEFORE_CALL + 1)

    def bury(self, job: Job) -> None:
        assert self.line.scheduler.remove(job)
        self.waiting.remove(job)

    @initialize(model=st.sampled_from("ab"), tokens=TextTokens)
    def first_text(self, model: str, tokens: int) -> None:
        assert self.line.scheduler.can_add(tokens)
        self.join(self.line.add(tokens, model=model))

    @rule(
        model=st.sampled_from("abc"),
        tokens=TextTokens,
        timeout_s=st.none() | st.integers(1, 9).map(float),
    )
    def text_arrives(self, model: str, tokens: int, timeout_s: float | None) -> None:
        if self.line.scheduler.can_add(tokens):
            self.join(self.line.add(tokens, model=model, timeout_s=timeout_s))
        else:
            waiting_tokens = sum(job.tokens for job in self.waiting)
            assert waiting_tokens + tokens > MAX_QUEUE_TOKENS

    @rule()
    def call_arrives(self) -> None:
        if self.line.scheduler.can_add_call():
            self.join(self.line.call())

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def caller_leaves(self, data: st.DataObject) -> None:
        data.draw(st.sampled_from(self.waiting)).future.cancel()

    @rule(seconds=st.sampled_from([0.5, 3.0]))
    def time_passes(self, seconds: float) -> None:
        self.line.now += seconds

    @rule()
    def departed_are_buried(self) -> None:
        for job in [job for job in self.waiting if job.has_departed(self.line.now)]:
            self.bury(job)

    @rule()
    def serve(self) -> None:
        unit = self.line.scheduler.next_unit(self.line.now)
        if unit is None:
            assert not self.live()
            return
        self.check_unit(unit)
        self.check_turn(lane_of(unit.jobs[0]))
        for job in unit.jobs:
            self.waiting.remove(job)  # raises if it was served before, or left
        self.check_patience()

    def check_unit(self, unit: Unit) -> None:
        """It is a prefix of its model's live jobs in its lane, and as long as the budget allows."""
        jobs = list(unit.jobs)
        in_lane = self.live(lane_of(jobs[0]))
        same_model = [job for job in in_lane if job.model == unit.model]
        assert jobs[0] is in_lane[0]
        assert jobs == same_model[: len(jobs)]
        assert len(jobs) == 1 or unit.tokens <= MAX_BATCH_TOKENS
        assert len(jobs) <= MAX_BATCH_SEQUENCES
        if lane_of(jobs[0]) == "short" and len(jobs) < min(len(same_model), MAX_BATCH_SEQUENCES):
            assert unit.tokens + same_model[len(jobs)].tokens > MAX_BATCH_TOKENS

    def check_turn(self, lane: LaneName) -> None:
        if lane == "call":
            assert self.units_past_call >= MAX_UNITS_BEFORE_CALL or not (
                self.live("short") or self.live("long")
            )
            self.units_past_call = 0
            return
        assert self.units_past_call < MAX_UNITS_BEFORE_CALL or not self.live("call")
        if self.live("short") and self.live("long"):
            assert lane != self.last_text_lane
        self.last_text_lane = lane
        calls_wait = any(lane_of(job) == "call" for job in self.waiting)
        self.units_past_call = self.units_past_call + 1 if calls_wait else 0

    def check_patience(self) -> None:
        for job in self.live():
            self.patience[job.number] -= 1
            assert self.patience[job.number] >= 0, "starved"

    @invariant()
    def counts_agree(self) -> None:
        scheduler = self.line.scheduler
        texts: list[Any] = [job for job in self.waiting if job.kind == "batch"]
        assert scheduler.num_waiting == len(texts)
        assert scheduler.waiting_tokens == sum(job.tokens for job in texts)
        assert scheduler.num_waiting_calls == len(self.waiting) - len(texts)
        assert scheduler.num_waiting_calls <= MAX_QUEUE_CALLS
        assert scheduler.waiting_tokens <= MAX_QUEUE_TOKENS or len(texts) == 1


Arrivals.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestArrivals = Arrivals.TestCase
