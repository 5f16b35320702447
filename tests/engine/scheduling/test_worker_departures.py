"""Callers who leave, deadlines that pass, and a door that refuses."""

from __future__ import annotations

import asyncio
import gc
import time
import weakref
from collections.abc import Sequence

import pytest

from engine.errors import (
    DeadlineExceeded,
    QueueFull,
)
from engine.scheduling.admission import Throughput
from tests.engine.bridge import (
    Gate,
    Notes,
    held,
    on_loop,
    running,
    squares,
    texts,
)


@on_loop
async def test_cancelled_futures_cost_no_compute() -> None:
    gate, observer = Gate(), Notes()
    async with held(gate, observer) as (device, _):
        left, stays = device.submit_text(1, 10), device.submit_text(2, 20)
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
            await device.submit_text(1, 1)

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
        assert (await device.submit_text(2, 1)).value == 4
    assert observer.cancelled_for == [], "it did run"


@on_loop
async def test_a_queued_caller_is_answered_at_its_deadline() -> None:
    gate, observer = Gate(), Notes()
    async with held(gate, observer) as (device, _):
        started_at = time.monotonic()
        with pytest.raises(DeadlineExceeded) as caught:
            await device.submit_text(1, 10, timeout_s=0.1)
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
        runs = device.submit_text(1, 1, timeout_s=0.3)
        await asyncio.to_thread(gate.begun.wait, 20)
        with pytest.raises(DeadlineExceeded):
            await runs
        gate.open.set()
        assert (await device.submit_text(2, 1)).value == 4
    assert observer.cancelled_for == []


@on_loop
async def test_a_deadline_in_time_leaves_no_timer_behind() -> None:
    async with running(squares) as device:
        future = device.submit_text(3, 1, timeout_s=3600)
        watched = weakref.ref(future)
        assert (await future).value == 9
        del future
        async with asyncio.timeout(5):
            while watched() is not None:  # the thread lets go of it a moment later
                await asyncio.sleep(0.01)
                gc.collect()


@on_loop
async def test_a_deadline_already_passed_is_refused_at_the_door() -> None:
    observer = Notes()
    async with running(squares, observer) as device:
        with pytest.raises(DeadlineExceeded, match="had already passed when the request arrived"):
            device.submit_text(1, 1, timeout_s=0.0)
    assert observer.rejected_for == ["deadline_exceeded"]
    assert observer.units == []


@on_loop
async def test_a_full_queue_refuses_at_the_door_and_says_when_to_come_back() -> None:
    def steady(model: str, payloads: Sequence[int]) -> list[int]:
        time.sleep(0.05)
        return squares(model, payloads)

    gate, observer = Gate(steady), Notes()
    gate.open.set()
    async with running(gate, observer, max_queue_tokens=400) as device:
        await device.submit_text(1, 100)  # measures: at most 2,000 tokens a second
        gate.open.clear()
        gate.begun.clear()
        running_now = device.submit_text(2, 100)
        await asyncio.to_thread(gate.begun.wait, 20)
        device.submit_text(3, 350)
        with pytest.raises(QueueFull) as caught:
            device.submit_text(4, 150)
        error = caught.value
        assert (error.code, error.limit, error.actual) == ("queue_full", 400, 500)
        assert error.retry_after_s is not None
        assert 0.05 <= error.retry_after_s < 1.0
        with pytest.raises(QueueFull) as caught:
            device.submit_text(5, 100_000)
        assert caught.value.retry_after_s is not None
        # All 350 waiting tokens must go first, and no more than those.
        assert 3.5 * 0.05 <= caught.value.retry_after_s < 10
        device.submit_text(6, 50)
        gate.open.set()
        assert (await running_now).value == 4
    assert observer.rejected_for == ["queue_full"] * 2
    assert gate.ran == [[1], [2], [6], [3]], "a short text goes before a long one"


@on_loop
async def test_a_call_of_many_texts_is_let_in_whole_or_not_at_all() -> None:
    gate, observer = Gate(), Notes()
    async with held(gate, observer, max_queue_tokens=100) as (device, _):
        device.submit_text(1, 50)
        with pytest.raises(QueueFull):
            device.submit(texts([(2, 30), (3, 30)]))
        assert observer.num_accepted == 2
        assert observer.depths[-1] == (1, 50)


@on_loop
async def test_work_beyond_the_limit_is_let_into_an_empty_queue() -> None:
    gate = Gate()
    async with held(gate, max_queue_tokens=10) as (device, _):
        future = device.submit_text(7, 11)
        with pytest.raises(QueueFull):
            device.submit_text(8, 1)
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
