"""What fails on the device answers its callers, and nothing else fails with it."""

from __future__ import annotations

import asyncio
import logging
import threading
import weakref
from collections.abc import Sequence

import pytest

from engine.errors import (
    DeviceFailure,
    InsufficientMemory,
    InvalidInput,
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
async def test_a_failing_job_answers_its_caller_and_the_thread_lives() -> None:
    def divide(model: str, payloads: Sequence[int]) -> list[int]:
        return [10 // payload for payload in payloads]

    async with running(divide) as device:
        with pytest.raises(DeviceFailure, match="ZeroDivisionError") as caught:
            await device.submit_text(0, 1)
        assert isinstance(caught.value.__cause__, ZeroDivisionError)
        assert device.alive
        assert (await device.submit_text(5, 1)).value == 2


@on_loop
async def test_only_the_guilty_of_a_batch_fail_and_each_with_its_own_exception() -> None:
    def picky(model: str, payloads: Sequence[int]) -> list[int]:
        if any(payload % 3 == 2 for payload in payloads):
            raise InvalidInput("not that one", code="picky", param="p", limit=1, actual=2)
        return squares(model, payloads)

    gate, observer = Gate(picky), Notes()
    async with held(gate, observer) as (device, first):
        futures = device.submit(texts([(number, 1) for number in range(1, 7)]))
        gate.open.set()
        await first
        answers = await asyncio.gather(*futures, return_exceptions=True)
    good = [answer.value for answer in answers if isinstance(answer, TimedResult)]
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
        stays, left = device.submit(texts([(1, 1), (2, 1)]))
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
            futures = device.submit(texts([(number, 1) for number in range(5)]))
            wakeups = count_wakeups(monkeypatch)
            gate.open.set()
            await first
            delivered = await asyncio.gather(*futures)
            assert len(wakeups) == 2
    assert [one.value for one in delivered] == [0, 1, 4, 9, 16]


@on_loop
async def test_out_of_memory_is_a_failed_batch_not_a_death() -> None:
    def hungry(model: str, payloads: Sequence[int]) -> list[int]:
        raise MemoryError

    async with running(hungry) as device:
        with pytest.raises(InsufficientMemory):
            await device.submit_text(1, 1)
        assert device.alive


@on_loop
async def test_a_result_too_few_is_a_failure() -> None:
    def forgetful(model: str, payloads: Sequence[int]) -> list[int]:
        return []

    async with running(forgetful) as device:
        with pytest.raises(DeviceFailure, match="0 results for 1 texts"):
            await device.submit_text(1, 1)


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
        futures = device.submit(texts([(1, 1), (2, 1)]))
        gate.open.set()
        errors = await asyncio.gather(*futures, return_exceptions=True)
    assert len(errors) == 2
    assert alive_at_retry == [0, 0, 0, 0]


@on_loop
async def test_failures_nobody_reads_are_not_reported_as_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # A log record would keep the error, and all it knows of, past this test's look at it.
    monkeypatch.setattr(logging.getLogger("engine.scheduling.worker"), "disabled", True)

    def fail(model: str, payloads: Sequence[int]) -> list[int]:
        raise RuntimeError("always")

    async with running(fail) as device:
        device.submit(texts([(1, 1), (2, 1)]))
