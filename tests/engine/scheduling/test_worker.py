"""The device worker: results, calls, waiting for room, and what the observer hears."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Sequence

import pytest

from engine.errors import (
    DeadlineExceeded,
    DeviceFailure,
    QueueFull,
)
from engine.scheduling.request import TimedResult
from tests.engine.bridge import (
    Gate,
    Notes,
    count_wakeups,
    held,
    on_loop,
    running,
    squares,
    texts,
)


@on_loop
async def test_submit_delivers_the_value_and_its_times() -> None:
    def slow_squares(model: str, payloads: Sequence[int]) -> list[int]:
        time.sleep(0.05)
        return squares(model, payloads)

    async with running(slow_squares) as device:
        first = device.submit_text(3, 10)
        await asyncio.sleep(0.01)
        second = device.submit_text(4, 10)
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
            return (await device.submit_text(number, tokens, model=str(number % 3))).value

        values = await asyncio.gather(*map(caller, range(2_000)))
    assert values == [number % 3 * number for number in range(2_000)]
    assert models == {"0", "1", "2"}


@on_loop
async def test_results_come_on_the_loop_one_wake_up_a_unit() -> None:
    gate, observer = Gate(), Notes()
    with pytest.MonkeyPatch.context() as monkeypatch:
        async with held(gate, observer) as (device, first):
            futures = device.submit(texts([(number, 10) for number in range(30)]))
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
    assert [one.value for one in delivered] == [number**2 for number in range(30)]


@on_loop
async def test_texts_submitted_together_are_served_in_order() -> None:
    gate = Gate()
    async with held(gate) as (device, _):
        futures = device.submit(texts([(number, 50) for number in range(1, 6)]))
        gate.open.set()
        await asyncio.gather(*futures)
    assert gate.ran == [[0], [1, 2], [3, 4], [5]]


@on_loop
async def test_the_observer_hears_of_everything() -> None:
    gate, observer = Gate(), Notes()
    async with held(gate, observer) as (device, _):
        futures = device.submit(texts([(1, 10), (2, 20)]))
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
        await device.submit_text(1, 1)
        before = time.process_time()
        await asyncio.sleep(0.3)
        assert time.process_time() - before < 0.1


@on_loop
async def test_a_call_runs_on_the_thread_with_its_arguments() -> None:
    def describe(number: int, word: str) -> tuple[int, str, int]:
        return number, word, threading.get_ident()

    async with running(squares) as device:
        value, queue_s, compute_s, *_ = await device.call(describe, 3, "three")
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
        waiting = device.submit(texts([(number, 60) for number in range(3)]))
        gate.open.set()
        assert (await call).value == 4
        await asyncio.gather(*waiting)


@on_loop
async def test_a_call_does_not_starve_under_constant_load() -> None:
    def slow_squares(model: str, payloads: Sequence[int]) -> list[int]:
        time.sleep(0.01)
        return squares(model, payloads)

    async with running(slow_squares, long_share=0.5) as device:
        stop = asyncio.Event()

        async def load() -> None:
            while not stop.is_set():
                await asyncio.gather(*(device.submit_text(number, 60) for number in range(20)))

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
        with device.session() as session:
            late = session.call(ran.append, 1, timeout_s=0.05)
            left = device.call(ran.append, 2)
            with pytest.raises(QueueFull) as caught:
                device.call(ran.append, 3)
            assert (caught.value.limit, caught.value.actual) == (2, 3)
            assert caught.value.retry_after_s == 1.0
            next_part = session.call(ran.append, 5)  # of a session that was admitted
        next_part.cancel()
        left.cancel()
        with pytest.raises(DeadlineExceeded):
            await late
        assert sorted(observer.cancelled_for) == ["caller_left", "caller_left", "deadline"]
        gate.open.set()
        await device.call(ran.append, 4)
    assert ran == [4]


@on_loop
async def test_who_waits_for_room_is_let_in_in_order_of_arrival_and_never_refused() -> None:
    gate, observer, entered = Gate(), Notes(), list[int]()
    async with held(gate, observer, max_queue_tokens=100) as (device, _):

        async def enter(number: int) -> int:
            await device.wait_for_room(60)
            entered.append(number)
            return (await device.submit_text(number, 60)).value

        entering = [asyncio.create_task(enter(number)) for number in range(5)]
        await asyncio.sleep(0.05)
        assert entered == [0], "two do not fit beside each other"
        with pytest.raises(QueueFull):
            device.submit_text(9, 60)
        gate.open.set()
        assert await asyncio.gather(*entering) == [0, 1, 4, 9, 16]
    assert entered == [0, 1, 2, 3, 4]
    assert observer.rejected_for == ["queue_full"]


@on_loop
async def test_who_fits_passes_who_waits_for_more_room() -> None:
    gate, entered = Gate(), list[int]()
    async with held(gate, max_queue_tokens=100) as (device, _):
        filling = [device.submit_text(number, 40) for number in range(2)]

        async def enter(tokens: int) -> None:
            await device.wait_for_room(tokens)
            entered.append(tokens)
            device.submit_text(tokens, tokens)

        entering = [asyncio.create_task(enter(tokens)) for tokens in (1_000, 90, 15, 30, 4, 25)]
        await turns()
        assert entered == [15, 4], "in order of arrival among those that fit"
        filling[0].cancel()
        await turns()
        assert entered == [15, 4, 30], "and where two would fit, the first of them"
        gate.open.set()
        await asyncio.gather(*entering)
    assert set(entered) == {1_000, 90, 15, 30, 4, 25}


@on_loop
async def test_room_taken_by_others_costs_nobody_the_place_in_line() -> None:
    gate, entered = Gate(), list[str]()
    async with held(gate, max_queue_tokens=100) as (device, _):
        filling = device.submit_text(1, 100)

        async def enter(name: str) -> None:
            await device.wait_for_room(80)
            entered.append(name)
            device.submit_text(2, 80)

        entering = [asyncio.create_task(enter(name)) for name in ("first", "second")]
        await turns()
        filling.add_done_callback(lambda _: others.append(device.submit_text(3, 50)))
        others = list[asyncio.Future[TimedResult[int]]]()
        filling.cancel()
        await turns()
        assert entered == [], "a caller outside the line was faster"
        others[0].cancel()
        await turns()
        assert entered == ["first"]
        gate.open.set()
        await asyncio.gather(*entering)
    assert entered == ["first", "second"]


async def turns() -> None:
    """Of the loop, more than anything here takes that does not wait for the device."""
    for _ in range(50):
        await asyncio.sleep(0)


@on_loop
async def test_room_that_a_caller_leaves_is_for_the_next_in_line() -> None:
    gate = Gate()
    async with held(gate, max_queue_tokens=100) as (device, _):
        waiting = device.submit_text(1, 100)
        impatient, next_one = (
            asyncio.create_task(device.wait_for_room(80)),
            asyncio.create_task(device.wait_for_room(80)),
        )
        await asyncio.sleep(0.05)
        impatient.cancel()
        waiting.cancel()
        await next_one
        assert device.has_room(80)
