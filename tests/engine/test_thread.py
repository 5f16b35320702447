"""The bridge, whole: a real loop, a real thread, and plain functions in the device's place."""

from __future__ import annotations

import asyncio
import functools
import gc
import logging
import threading
import time
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Literal, ParamSpec, TypeAlias

import pytest

from engine.errors import (
    DeadlineExceeded,
    DeviceFailure,
    EngineUnavailable,
    InvalidInput,
    LLNError,
    QueueFull,
)
from engine.observer import EngineObserver, Unit
from engine.scheduler import Scheduler
from engine.thread import Delivered, DeviceThread, Throughput

P = ParamSpec("P")
Run: TypeAlias = Callable[[str, Sequence[int]], Sequence[int]]
Device: TypeAlias = DeviceThread[int, int]


def on_loop(test: Callable[P, Awaitable[None]]) -> Callable[P, None]:
    """Run an async test on a loop of its own, where nothing may hang or go wrong unheard."""

    @functools.wraps(test)
    def run_test(*args: P.args, **kwargs: P.kwargs) -> None:
        unheard: list[dict[str, Any]] = []

        async def body() -> None:
            loop = asyncio.get_running_loop()
            loop.set_exception_handler(lambda _, context: unheard.append(context))
            async with asyncio.timeout(20):
                await test(*args, **kwargs)

        asyncio.run(body())
        gc.collect()
        assert unheard == []

    return run_test


class Notes(EngineObserver):
    """Writes down what it hears."""

    def __init__(self) -> None:
        self.num_accepted = 0
        self.rejected_for: list[str] = []
        self.cancelled_for: list[str] = []
        self.depths: list[tuple[int, int]] = []
        self.units: list[tuple[str, str, int, int, bool]] = []
        self.waits: list[float] = []

    def accepted(self, *, model: str, tokens: int) -> None:
        self.num_accepted += 1

    def rejected(self, *, reason: str) -> None:
        self.rejected_for.append(reason)

    def cancelled(self, *, reason: Literal["caller_left", "deadline"]) -> None:
        self.cancelled_for.append(reason)

    def queue_changed(self, *, depth: int, tokens: int) -> None:
        self.depths.append((depth, tokens))

    def unit_finished(
        self, *, unit: Unit, model: str, sequences: int, tokens: int, compute_s: float, failed: bool
    ) -> None:
        assert compute_s >= 0
        self.units.append((unit, model, sequences, tokens, failed))

    def waited(self, *, seconds: float) -> None:
        self.waits.append(seconds)


class Gate:
    """A device that runs nothing until it is let, and says when it has begun."""

    def __init__(self, run: Run | None = None) -> None:
        self.ran: list[list[int]] = []
        self.begun = threading.Event()
        self.open = threading.Event()
        self._run = run or squares

    def __call__(self, model: str, payloads: Sequence[int]) -> Sequence[int]:
        self.begun.set()
        assert self.open.wait(20)
        self.ran.append(list(payloads))
        return self._run(model, payloads)


def squares(model: str, payloads: Sequence[int]) -> list[int]:
    return [payload**2 for payload in payloads]


def new_device(run: Run, observer: EngineObserver | None = None, **limits: int) -> Device:
    defaults = {"max_batch_tokens": 100, "max_batch_sequences": 64, "max_queue_tokens": 100_000}
    scheduler = Scheduler(**{**defaults, **limits})
    return DeviceThread(run=run, scheduler=scheduler, observer=observer)


@asynccontextmanager
async def running(
    run: Run, observer: EngineObserver | None = None, **limits: int
) -> AsyncIterator[Device]:
    device = new_device(run, observer, **limits)
    await device.start()
    try:
        yield device
    finally:
        if isinstance(run, Gate):
            run.open.set()
        await device.stop(10)
        assert not device.alive


@asynccontextmanager
async def held(
    gate: Gate, observer: EngineObserver | None = None, **limits: int
) -> AsyncIterator[tuple[Device, asyncio.Future[Delivered[int]]]]:
    """A device whose thread already sits in a unit of one job, so that all else queues."""
    async with running(gate, observer, **limits) as device:
        first = device.submit("m", 0, 1)
        await asyncio.to_thread(gate.begun.wait, 20)
        yield device, first


def count_wakeups(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The threads that woke the loop, one entry a wake-up."""
    loop = asyncio.get_running_loop()
    original, wakeups = loop.call_soon_threadsafe, list[int]()

    def counted(callback: Callable[..., object], *args: Any, **kwargs: Any) -> asyncio.Handle:
        wakeups.append(threading.get_ident())
        return original(callback, *args, **kwargs)

    monkeypatch.setattr(loop, "call_soon_threadsafe", counted)
    return wakeups


# Results


@on_loop
async def test_submit_delivers_the_value_and_its_times() -> None:
    def slow_squares(model: str, payloads: Sequence[int]) -> list[int]:
        time.sleep(0.05)
        return squares(model, payloads)

    async with running(slow_squares) as device:
        first = device.submit("m", 3, 10)
        await asyncio.sleep(0.01)
        second = device.submit("m", 4, 10)
        assert (await first).value == 9
        assert 0.05 <= (await first).compute_s < 5
        assert 0 <= (await first).queue_s < 5
        assert (await second).value == 16
        assert (await second).queue_s >= 0.02


@on_loop
async def test_many_concurrent_submits_each_get_their_own_result() -> None:
    models: set[str] = set()

    def run(model: str, payloads: Sequence[int]) -> list[int]:
        models.add(model)
        factor = int(model)
        return [factor * payload for payload in payloads]

    async with running(run) as device:

        async def caller(number: int) -> int:
            await asyncio.sleep(number % 7 / 1000)
            tokens = 150 if number % 50 == 0 else 1 + number % 13
            return (await device.submit(str(number % 3), number, tokens)).value

        values = await asyncio.gather(*map(caller, range(2_000)))
    assert values == [number % 3 * number for number in range(2_000)]
    assert models == {"0", "1", "2"}


@on_loop
async def test_results_come_on_the_loop_one_wake_up_a_unit() -> None:
    gate, observer = Gate(), Notes()
    with pytest.MonkeyPatch.context() as monkeypatch:
        async with held(gate, observer) as (device, first):
            futures = device.submit_all("m", [(number, 10) for number in range(30)])
            threads: set[int] = set()
            for future in futures:
                future.add_done_callback(lambda _: threads.add(threading.get_ident()))
            wakeups = count_wakeups(monkeypatch)
            gate.open.set()
            await first
            delivered = await asyncio.gather(*futures)
            assert len(observer.units) == 4  # the first alone, then 30 jobs in units of 10
            assert len(wakeups) == 4
            assert threading.get_ident() not in wakeups
            assert threads == {threading.get_ident()}
    assert [value for value, _, _ in delivered] == [number**2 for number in range(30)]


@on_loop
async def test_submit_all_is_served_in_order() -> None:
    gate = Gate()
    async with held(gate) as (device, _):
        futures = device.submit_all("m", [(number, 50) for number in range(1, 6)])
        gate.open.set()
        await asyncio.gather(*futures)
    assert gate.ran == [[0], [1, 2], [3, 4], [5]]


@on_loop
async def test_the_observer_hears_of_everything() -> None:
    gate, observer = Gate(), Notes()
    async with held(gate, observer) as (device, _):
        futures = device.submit_all("m", [(1, 10), (2, 20)])
        assert observer.depths[-1] == (2, 30)
        gate.open.set()
        await asyncio.gather(*futures)
        await device.call(lambda: None, kind="benchmark", model="m", tokens=7)
    assert observer.num_accepted == 3
    assert observer.depths[-1] == (0, 0)
    assert len(observer.waits) == 3
    assert observer.units == [
        ("batch", "m", 1, 1, False),
        ("batch", "m", 2, 30, False),
        ("benchmark", "m", 1, 7, False),
    ]
    assert observer.rejected_for == []
    assert observer.cancelled_for == []


@on_loop
async def test_an_idle_thread_sleeps() -> None:
    async with running(squares) as device:
        await device.submit("m", 1, 1)
        before = time.process_time()
        await asyncio.sleep(0.3)
        assert time.process_time() - before < 0.1


# Failures


@on_loop
async def test_a_failing_job_answers_its_caller_and_the_thread_lives() -> None:
    def divide(model: str, payloads: Sequence[int]) -> list[int]:
        return [10 // payload for payload in payloads]

    async with running(divide) as device:
        with pytest.raises(DeviceFailure, match="ZeroDivisionError") as caught:
            await device.submit("m", 0, 1)
        assert isinstance(caught.value.__cause__, ZeroDivisionError)
        assert device.alive
        assert (await device.submit("m", 5, 1)).value == 2


@on_loop
async def test_only_the_guilty_of_a_batch_fail_and_each_with_its_own_exception() -> None:
    def picky(model: str, payloads: Sequence[int]) -> list[int]:
        if any(payload % 3 == 2 for payload in payloads):
            raise InvalidInput("not that one", code="picky", param="p", limit=1, actual=2)
        return squares(model, payloads)

    gate, observer = Gate(picky), Notes()
    async with held(gate, observer) as (device, first):
        futures = device.submit_all("m", [(number, 1) for number in range(1, 7)])
        gate.open.set()
        await first
        answers = await asyncio.gather(*futures, return_exceptions=True)
    good = [answer.value for answer in answers if isinstance(answer, Delivered)]
    bad = [answer for answer in answers if isinstance(answer, InvalidInput)]
    assert good == [1, 9, 16, 36]
    assert [(error.code, error.param, error.limit, error.actual) for error in bad] == [
        ("picky", "p", 1, 2)
    ] * 2
    assert bad[0] is not bad[1]
    assert all(isinstance(error.__cause__, InvalidInput) for error in bad)
    assert all(error.__cause__ is not error for error in bad)
    assert gate.ran[1:] == [[1, 2, 3, 4, 5, 6], [1], [2], [3], [4], [5], [6]]
    assert [failed for *_, failed in observer.units] == [
        False, True, False, True, False, False, True, False
    ]  # fmt: skip


@on_loop
async def test_who_left_during_a_failing_batch_is_not_run_again() -> None:
    ran: list[list[int]] = []
    begun, let_fail = threading.Event(), threading.Event()

    def run(model: str, payloads: Sequence[int]) -> list[int]:
        ran.append(list(payloads))
        if len(payloads) > 1:
            begun.set()
            assert let_fail.wait(20)
            raise RuntimeError("too many at once")
        return squares(model, payloads)

    async with running(run) as device:
        stays, left = device.submit_all("m", [(1, 1), (2, 1)])
        await asyncio.to_thread(begun.wait, 20)
        left.cancel()
        let_fail.set()
        assert (await stays).value == 1
    assert ran == [[1, 2], [1]]


@on_loop
async def test_one_wake_up_also_for_a_batch_run_again_singly() -> None:
    def never_two(model: str, payloads: Sequence[int]) -> list[int]:
        if len(payloads) > 1:
            raise RuntimeError("too many at once")
        return squares(model, payloads)

    gate = Gate(never_two)
    with pytest.MonkeyPatch.context() as monkeypatch:
        async with held(gate) as (device, first):
            futures = device.submit_all("m", [(number, 1) for number in range(5)])
            wakeups = count_wakeups(monkeypatch)
            gate.open.set()
            await first
            delivered = await asyncio.gather(*futures)
            assert len(wakeups) == 2
    assert [value for value, _, _ in delivered] == [0, 1, 4, 9, 16]


@on_loop
async def test_out_of_memory_is_a_failed_batch_not_a_death() -> None:
    def hungry(model: str, payloads: Sequence[int]) -> list[int]:
        raise MemoryError

    async with running(hungry) as device:
        with pytest.raises(DeviceFailure, match="MemoryError"):
            await device.submit("m", 1, 1)
        assert device.alive


@on_loop
async def test_a_result_too_few_is_a_failure() -> None:
    def forgetful(model: str, payloads: Sequence[int]) -> list[int]:
        return []

    async with running(forgetful) as device:
        with pytest.raises(DeviceFailure, match="0 results for 1 texts"):
            await device.submit("m", 1, 1)


@on_loop
async def test_a_failed_run_lets_go_of_its_memory() -> None:
    class Tensor:
        pass

    tensors: list[weakref.ref[Tensor]] = []
    alive_at_retry: list[int] = []

    def allocate(model: str, payloads: Sequence[int]) -> list[int]:
        alive_at_retry.append(sum(ref() is not None for ref in tensors))
        tensor = Tensor()
        tensors.append(weakref.ref(tensor))
        if payloads[0]:
            raise RuntimeError("no room")
        return squares(model, payloads)

    gate = Gate(allocate)
    async with held(gate) as (device, _):
        futures = device.submit_all("m", [(1, 1), (2, 1)])
        gate.open.set()
        errors = await asyncio.gather(*futures, return_exceptions=True)
    assert len(errors) == 2
    assert alive_at_retry == [0, 0, 0, 0]


@on_loop
async def test_failures_nobody_reads_are_not_reported_as_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # A log record would keep the error, and all it knows of, past this test's look at it.
    monkeypatch.setattr(logging.getLogger("engine.thread"), "disabled", True)

    def fail(model: str, payloads: Sequence[int]) -> list[int]:
        raise RuntimeError("always")

    async with running(fail) as device:
        device.submit_all("m", [(1, 1), (2, 1)])


# Callers who leave


@on_loop
async def test_cancelled_futures_cost_no_compute() -> None:
    gate, observer = Gate(), Notes()
    async with held(gate, observer) as (device, _):
        left, stays = device.submit("m", 1, 10), device.submit("m", 2, 20)
        left.cancel()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert observer.cancelled_for == ["caller_left"]
        assert observer.depths[-1] == (1, 20)
        gate.open.set()
        assert (await stays).value == 4
    assert gate.ran == [[0], [2]]


@on_loop
async def test_a_cancelled_task_cancels_its_work() -> None:
    gate = Gate()
    async with held(gate) as (device, _):

        async def caller() -> None:
            await device.submit("m", 1, 1)

        task = asyncio.create_task(caller())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        gate.open.set()
    assert gate.ran == [[0]]


@on_loop
async def test_work_cancelled_while_it_runs_is_dropped_quietly() -> None:
    gate, observer = Gate(), Notes()
    async with held(gate, observer) as (device, first):
        first.cancel()
        gate.open.set()
        assert (await device.submit("m", 2, 1)).value == 4
    assert observer.cancelled_for == [], "it did run"


@on_loop
async def test_a_queued_caller_is_answered_at_its_deadline() -> None:
    gate, observer = Gate(), Notes()
    async with held(gate, observer) as (device, _):
        started_at = time.monotonic()
        with pytest.raises(DeadlineExceeded) as caught:
            await device.submit("m", 1, 10, timeout_s=0.1)
        assert 0.09 <= time.monotonic() - started_at < 5
        assert caught.value.limit == 0.1
        assert isinstance(caught.value.actual, float)
        assert caught.value.actual >= 0.09
        assert observer.cancelled_for == ["deadline"]
        assert observer.depths[-1] == (0, 0)
        assert not gate.ran, "the thread was still busy with another unit"
    assert gate.ran == [[0]]


@on_loop
async def test_a_caller_whose_work_runs_is_answered_at_its_deadline_too() -> None:
    gate, observer = Gate(), Notes()
    async with running(gate, observer) as device:
        runs = device.submit("m", 1, 1, timeout_s=0.3)
        await asyncio.to_thread(gate.begun.wait, 20)
        with pytest.raises(DeadlineExceeded):
            await runs
        gate.open.set()
        assert (await device.submit("m", 2, 1)).value == 4
    assert observer.cancelled_for == []


@on_loop
async def test_a_deadline_in_time_leaves_no_timer_behind() -> None:
    async with running(squares) as device:
        future = device.submit("m", 3, 1, timeout_s=3600)
        watched = weakref.ref(future)
        assert (await future).value == 9
        del future
        await asyncio.sleep(0)
        gc.collect()
        assert watched() is None


@on_loop
async def test_a_deadline_already_passed_is_refused_at_the_door() -> None:
    observer = Notes()
    async with running(squares, observer) as device:
        with pytest.raises(DeadlineExceeded):
            device.submit("m", 1, 1, timeout_s=0.0)
    assert observer.rejected_for == ["deadline_exceeded"]
    assert observer.units == []


# Admission


@on_loop
async def test_a_full_queue_refuses_at_the_door_and_says_when_to_come_back() -> None:
    def steady(model: str, payloads: Sequence[int]) -> list[int]:
        time.sleep(0.05)
        return squares(model, payloads)

    gate, observer = Gate(steady), Notes()
    gate.open.set()
    async with running(gate, observer, max_queue_tokens=400) as device:
        await device.submit("m", 1, 100)  # measures: at most 2,000 tokens a second
        gate.open.clear()
        gate.begun.clear()
        running_now = device.submit("m", 2, 100)
        await asyncio.to_thread(gate.begun.wait, 20)
        device.submit("m", 3, 350)
        with pytest.raises(QueueFull) as caught:
            device.submit("m", 4, 150)
        error = caught.value
        assert (error.code, error.limit, error.actual) == ("queue_full", 400, 500)
        assert error.retry_after_s is not None
        assert 0.05 <= error.retry_after_s < 1.0
        with pytest.raises(QueueFull) as caught:
            device.submit("m", 5, 100_000)
        assert caught.value.retry_after_s is not None
        # All 350 waiting tokens must go first, and no more than those.
        assert 3.5 * 0.05 <= caught.value.retry_after_s < 10
        device.submit("m", 6, 50)
        gate.open.set()
        assert (await running_now).value == 4
    assert observer.rejected_for == ["queue_full"] * 2
    assert gate.ran == [[1], [2], [3], [6]]


@on_loop
async def test_a_call_of_many_texts_is_let_in_whole_or_not_at_all() -> None:
    gate, observer = Gate(), Notes()
    async with held(gate, observer, max_queue_tokens=100) as (device, _):
        device.submit("m", 1, 50)
        with pytest.raises(QueueFull):
            device.submit_all("m", [(2, 30), (3, 30)])
        assert observer.num_accepted == 2
        assert observer.depths[-1] == (1, 50)


@on_loop
async def test_work_beyond_the_limit_is_let_into_an_empty_queue() -> None:
    gate = Gate()
    async with held(gate, max_queue_tokens=10) as (device, _):
        future = device.submit("m", 7, 11)
        with pytest.raises(QueueFull):
            device.submit("m", 8, 1)
        gate.open.set()
        assert (await future).value == 49


def test_throughput_follows_the_last_units() -> None:
    rate = Throughput()
    assert rate.seconds_for(1_000_000) == 1.0, "nothing measured yet"
    rate.add(1_000, 1.0)
    assert rate.seconds_for(500) == pytest.approx(0.5)
    for _ in range(100):
        rate.add(4_000, 1.0)
    assert rate.seconds_for(4_000) == pytest.approx(1.0, rel=1e-3)


# Calls


@on_loop
async def test_a_call_runs_on_the_thread_with_its_arguments() -> None:
    def describe(number: int, word: str) -> tuple[int, str, int]:
        return number, word, threading.get_ident()

    async with running(squares) as device:
        value, queue_s, compute_s = await device.call(describe, 3, "three")
        assert value[:2] == (3, "three")
        assert value[2] != threading.get_ident()
        assert queue_s >= 0
        assert compute_s >= 0
        with pytest.raises(DeviceFailure, match="ZeroDivisionError"):
            await device.call(lambda: 1 // 0)


@on_loop
async def test_a_call_lets_waiting_texts_go_first() -> None:
    gate = Gate()
    async with held(gate) as (device, _):
        call = device.call(lambda: len(gate.ran))
        texts = device.submit_all("m", [(number, 60) for number in range(3)])
        gate.open.set()
        assert (await call).value == 4
        await asyncio.gather(*texts)


@on_loop
async def test_a_call_does_not_starve_under_constant_load() -> None:
    async with running(squares, max_units_before_call=5) as device:
        stop = asyncio.Event()

        async def load() -> None:
            while not stop.is_set():
                await asyncio.gather(*(device.submit("m", number, 60) for number in range(20)))

        clients = [asyncio.create_task(load()) for _ in range(3)]
        await asyncio.sleep(0)
        for _ in range(3):
            assert (await device.call(lambda: "done")).value == "done"
        stop.set()
        await asyncio.gather(*clients)


@on_loop
async def test_calls_obey_limits_deadlines_and_cancellation() -> None:
    gate, observer = Gate(), Notes()
    async with held(gate, observer, max_queue_calls=2) as (device, _):
        ran: list[int] = []
        late = device.call(ran.append, 1, timeout_s=0.05)
        left = device.call(ran.append, 2)
        with pytest.raises(QueueFull) as caught:
            device.call(ran.append, 3)
        assert (caught.value.limit, caught.value.actual) == (2, 3)
        assert caught.value.retry_after_s == 1.0
        left.cancel()
        with pytest.raises(DeadlineExceeded):
            await late
        assert sorted(observer.cancelled_for) == ["caller_left", "deadline"]
        gate.open.set()
        await device.call(ran.append, 4)
    assert ran == [4]


# Start, stop and death


@on_loop
async def test_work_is_refused_before_start_and_after_stop() -> None:
    observer = Notes()
    device = new_device(squares, observer)
    assert not device.alive
    assert not device.accepting
    with pytest.raises(EngineUnavailable):
        device.submit("m", 1, 1)
    await device.start()
    assert device.alive
    assert device.accepting
    await device.stop(10)
    assert not device.alive
    for refused in (lambda: device.submit("m", 1, 1), lambda: device.call(print)):
        with pytest.raises(EngineUnavailable):
            refused()
    assert observer.rejected_for == ["unavailable"] * 3
    await device.stop(10)


@on_loop
async def test_a_device_never_started_stops_at_once() -> None:
    await new_device(squares).stop(10)


@on_loop
async def test_stop_drains_accepted_work() -> None:
    gate = Gate()
    async with held(gate) as (device, first):
        texts = device.submit_all("m", [(number, 60) for number in range(5)])
        call = device.call(lambda: "call")
        stopping = asyncio.create_task(device.stop(10))
        await asyncio.sleep(0)
        with pytest.raises(EngineUnavailable):
            device.submit("m", 9, 1)
        assert device.alive
        assert not device.accepting
        gate.open.set()
        await stopping
        assert not device.alive
        done = [first, *texts]
        assert [future.result().value for future in done] == [0, 0, 1, 4, 9, 16]
        assert call.result().value == "call"


@on_loop
async def test_stop_does_not_wait_for_callers_who_left() -> None:
    gate = Gate()
    async with held(gate) as (device, _):
        waiting = device.submit("m", 1, 1)
        stopping = asyncio.create_task(device.stop(10))
        await asyncio.sleep(0)
        waiting.cancel()
        gate.open.set()
        time.sleep(0.1)  # the thread comes back before this loop has noticed who left
        started_at = time.monotonic()
        await stopping
        assert time.monotonic() - started_at < 5
    assert gate.ran == [[0]]


@on_loop
async def test_after_the_drain_timeout_what_is_left_fails() -> None:
    gate, observer = Gate(), Notes()
    async with held(gate, observer) as (device, first):
        waiting = device.submit("m", 1, 1)
        call = device.call(lambda: None)
        await device.stop(0.05)
        for future in (first, waiting, call):
            error = future.exception()
            assert isinstance(error, EngineUnavailable)
            assert error.limit == 0.05
        assert observer.depths[-1] == (0, 0)
    assert gate.ran == [[0]], "the thread ends with the unit it was in"


@on_loop
async def test_stopping_with_no_patience_still_answers_all() -> None:
    gate = Gate()
    async with held(gate) as (device, first):
        await device.stop(0)
        with pytest.raises(EngineUnavailable):
            await first


@pytest.mark.parametrize("death", [SystemExit, KeyboardInterrupt])
def test_the_death_of_the_thread_answers_everyone(death: type[BaseException]) -> None:
    def die(model: str, payloads: Sequence[int]) -> list[int]:
        raise death

    @on_loop
    async def scenario() -> None:
        gate, observer = Gate(die), Notes()
        async with held(gate, observer) as (device, first):
            texts = device.submit_all("m", [(number, 500) for number in range(3)])
            call = device.call(lambda: None)
            gate.open.set()
            errors = await asyncio.gather(first, *texts, call, return_exceptions=True)
            assert all(isinstance(error, DeviceFailure) for error in errors)
            assert all(isinstance(error.__cause__, death) for error in errors if error)  # type: ignore[union-attr]
            assert len({id(error) for error in errors}) == 5
            assert not device.alive
            assert not device.accepting
            with pytest.raises(EngineUnavailable, match="failed"):
                device.submit("m", 1, 1)
            assert observer.depths[-1] == (0, 0)

    scenario()


@on_loop
async def test_an_observer_that_raises_on_the_thread_leaves_nobody_waiting() -> None:
    class Broken(EngineObserver):
        def waited(self, *, seconds: float) -> None:
            raise ValueError("broken")

    async with running(squares, Broken()) as device:
        with pytest.raises(LLNError):
            await device.submit("m", 1, 1)
        assert not device.alive


def test_a_loop_closed_without_a_stop_leaves_no_error_behind() -> None:
    gate = Gate()
    device = new_device(gate)

    async def leave_in_a_hurry() -> None:
        await device.start()
        device.submit("m", 1, 1)
        await asyncio.to_thread(gate.begun.wait, 20)

    asyncio.run(leave_in_a_hurry())
    device.stop_accepting()
    gate.open.set()
    deadline = time.monotonic() + 10
    while device.alive and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not device.alive
